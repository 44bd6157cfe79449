/*
 * What programs do with plain device memory, and the driver treats otherwise where
 * that memory is mapped.
 *
 *   mapped fill     blocks of all sizes hold what is written to them
 *   mapped first    the same, where memory is first asked for during a capture
 *   mapped newcomer the same on a device that is first used during the capture
 *   mapped closed   the same in a capture that forbids it, without the library
 *   mapped peers    another device is let in while blocks are there and in use, and
 *                   works on them and on later ones
 *   mapped asked    what the driver says of a block
 *   mapped misused  the calls for virtual memory are made for a block
 *   mapped given    handles to the memory behind a block, and a handle for another
 *                   process
 *   mapped waits    a block is to be copied in step with the host
 *   mapped ended    the device is reset while blocks are there, twice
 *   mapped beside   another device is reset during a capture
 *
 * One line says what came of it.
 */
#include "gpu.h"

#include "find.h"

#include <unistd.h>

typedef unsigned long long address;

enum { BLOCKS = 6, CONTEXT = 1, SYNCHRONOUS = 6, START = 11, SIZE = 12 };

static const size_t sizes[BLOCKS] = {512, 100000, 3 << 20, 5 << 20, 2 << 20, 40 << 20};

static void *blocks[BLOCKS];

static void take_all(void) {
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_malloc(&blocks[i], sizes[i]));
}

static void free_all(void) {
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free(blocks[i]));
}

/* How many blocks hold this byte everywhere. */
static int holding(int value) {
    int held = 0;
    for (int i = 0; i < BLOCKS; i++) {
        unsigned char *copy = malloc(sizes[i]);
        GPU(gpu_copy_out(copy, blocks[i], sizes[i]));
        held += gpu_is_all(copy, (unsigned char)value, sizes[i]);
        free(copy);
    }
    return held;
}

static void fill(void) {
    take_all();
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_set(blocks[i], 7, sizes[i]));
    GPU(gpu_sync());
    printf("hold: %d\n", holding(7));
    free_all();
}

/* Memory of a device is first asked for during a capture of another, or of its own. */
static void first_on(int device, int mode) {
    gpu_stream stream;
    gpu_graph graph;
    void *block;
    GPU(gpu_stream_create(&stream));
    GPU(gpu_capture_begin(stream, mode));
    GPU(gpu_set_device(device));
    GPU(gpu_malloc(&block, 3 << 20));
    GPU(gpu_set_device(0));
    GPU(gpu_capture_end(stream, &graph));
    GPU(gpu_set_device(device));
    GPU(gpu_free(block));
    fill();
}

static void first(void) { first_on(0, GPU_CAPTURE_RELAXED); }

static void newcomer(void) { first_on(1, GPU_CAPTURE_RELAXED); }

static void closed(void) { first_on(0, GPU_CAPTURE_GLOBAL); }

/* The other device writes to every block. */
static int written_by(int device, int value) {
    gpu_stream stream;
    GPU(gpu_set_device(device));
    GPU(gpu_stream_create(&stream));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_set_async(blocks[i], value, sizes[i], stream));
    GPU(gpu_stream_sync(stream));
    GPU(gpu_set_device(0));
    return holding(value);
}

/* What a device may do with a block, as the driver's number. */
static address access_of(int device, void *block) {
    int (*ask)(address *, const int *, address) = find("cuMemGetAccess");
    const int location[] = {1, device};
    address flags = 0;
    GPU(ask(&flags, location, (uintptr_t)block));
    return flags;
}

static void peers(void) {
    gpu_stream busy;
    take_all();
    GPU(gpu_stream_create(&busy));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_fill(busy, blocks[i], 1, sizes[i] / 4, 200 * 1000 * 1000));
    GPU(gpu_set_device(1));
    int let_in = gpu_enable_peer(0);
    GPU(gpu_set_device(0));
    GPU(gpu_stream_sync(busy));
    printf("let in: %d, ", let_in);
    if (!let_in)
        printf("before: %d, ", written_by(1, 2));
    void *more;
    GPU(gpu_malloc(&more, 300 << 20));
    if (let_in) {
        printf("later: %llu\n", access_of(1, more));
        return;
    }
    GPU(gpu_free(blocks[5]));
    blocks[5] = more;
    printf("later: %d\n", written_by(1, 3));
    free_all();
}

static void asked(void) {
    int (*attribute)(void *, int, address) = find("cuPointerGetAttribute");
    int (*attributes)(unsigned, int *, void **, address) = find("cuPointerGetAttributes");
    int (*current)(void **) = find("cuCtxGetCurrent");
    int (*range)(address *, size_t *, address) = find("cuMemGetAddressRange_v2");
    int context = 0, start = 0, size = 0, freed;
    void *own;
    take_all();
    GPU(current(&own));
    for (int i = 0; i < BLOCKS; i++) {
        address at = (uintptr_t)blocks[i] + sizes[i] / 2, from[3] = {0};
        void *its = NULL, *again = NULL, *to[] = {&from[1], &again, &from[2]};
        int which[] = {START, CONTEXT, SIZE};
        size_t length = 0;
        GPU(attribute(&its, CONTEXT, at));
        GPU(attributes(3, which, to, at));
        GPU(range(&from[0], &length, at));
        context += its == own && again == own;
        start += from[0] == from[1] && from[0] == (uintptr_t)blocks[i];
        size += length == from[2] && length >= sizes[i];
    }
    free_all();
    address from = 0;
    freed = range(&from, NULL, (uintptr_t)blocks[5] + 512);
    printf("context: %d, start: %d, size: %d, freed: %d\n", context, start, size, freed);
}

static void misused(void) {
    int (*create)(address *, size_t, const int *, address) = find("cuMemCreate");
    int (*release)(address) = find("cuMemRelease");
    int (*map)(address, size_t, size_t, address, address) = find("cuMemMap");
    int (*admit)(address, size_t, const int *, size_t) = find("cuMemSetAccess");
    int (*unmap)(address, size_t) = find("cuMemUnmap");
    const int pinned_memory_of_device[18] = {1, 0, 1, 0}, nobody[3] = {1, 0, 0};
    const size_t unit = 2 << 20;
    address own;
    take_all();
    address at = ((uintptr_t)blocks[5] + unit - 1) / unit * unit;
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_set_async(blocks[i], 7, sizes[i], NULL));
    GPU(gpu_sync());
    GPU(create(&own, unit, pinned_memory_of_device, 0));
    int unmapped = unmap(at, unit), mapped = map(at, unit, 0, own, 0);
    int admitted = admit(at, unit, nobody, 1), below = unmap(at - unit, 2 * unit);
    GPU(release(own));
    printf("unmapped: %d, below: %d, mapped: %d, admitted: %d, hold: %d\n", unmapped, below,
           mapped, admitted, holding(7));
    free_all();
}

static void given(void) {
    int (*retain)(address *, void *) = find("cuMemRetainAllocationHandle");
    int (*release)(address) = find("cuMemRelease");
    int (*hand)(int *, address, size_t, int, address) =
        find("cuMemGetHandleForAddressRange");
    address unit = 0;
    gpu_ipc_handle handle;
    int file = -1, code;
    take_all();
    address page = ((uintptr_t)blocks[5] + 4095) / 4096 * 4096;
    code = retain(&unit, (char *)blocks[5] + 100);
    printf("memory: %d %d, ", code, code ? 0 : release(unit));
    code = hand(&file, page, 4096, 1, 0);
    printf("addresses: %d, ", code);
    if (!code)
        close(file);
    printf("process: %d, ", gpu_ipc_get(&handle, blocks[5]));
    GPU(gpu_free(blocks[5]));
    printf("freed: %d %d, ", retain(&unit, (char *)blocks[5] + 100),
           hand(&file, page, 4096, 1, 0));
    GPU(gpu_malloc(&blocks[5], 600 << 20));
    printf("later: %d\n", gpu_ipc_get(&handle, blocks[5]));
    free_all();
}

/* Whether a copy inside the device is done when the call returns. */
static int in_step(void) {
    int (*asks)(gpu_stream) = find("cuStreamQuery");
    GPU(gpu_sync());
    GPU(gpu_copy(blocks[5], blocks[4], sizes[4]));
    return asks(NULL) == 0;
}

static void waits(void) {
    int (*set)(const void *, int, address) = find("cuPointerSetAttribute");
    int (*flags)(unsigned *) = find("cuCtxGetFlags");
    unsigned on = 1, before, after;
    take_all();
    GPU(flags(&before));
    int not_yet = in_step();
    int code = set(&on, SYNCHRONOUS, (uintptr_t)blocks[5]);
    GPU(flags(&after));
    printf("in step: %d, set: %d, in step: %d, context: %x\n", not_yet, code, in_step(),
           after & ~before);
    GPU(gpu_set_device(1));
    GPU(gpu_sync());
    GPU(flags(&after));
    printf("another context: %x\n", after & ~before);
    GPU(gpu_set_device(0));
    free_all();
}

static void ended(void) {
    for (int i = 0; i < 2; i++) {
        take_all();
        GPU(gpu_set(blocks[5], 1, sizes[5]));
        GPU(gpu_reset());
        GPU(gpu_set_device(0));
        GPU(gpu_sync());
    }
    fill();
    GPU(gpu_reset());
}

static void beside(void) {
    gpu_stream stream;
    gpu_graph graph;
    size_t before, after, total;
    GPU(gpu_stream_create(&stream));
    GPU(gpu_set_device(1));
    GPU(gpu_mem_info(&before, &total));
    take_all();
    GPU(gpu_sync());
    GPU(gpu_set_device(0));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(gpu_set_device(1));
    GPU(gpu_reset());
    GPU(gpu_set_device(0));
    GPU(gpu_capture_end(stream, &graph));
    GPU(gpu_set_device(1));
    GPU(gpu_mem_info(&after, &total));
    printf("back: %d\n", after == before);
    GPU(gpu_reset());
    GPU(gpu_set_device(0));
    fill();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"fill", fill},         {"first", first}, {"newcomer", newcomer},
               {"closed", closed},     {"peers", peers}, {"asked", asked}, {"misused", misused},
               {"given", given},       {"waits", waits}, {"ended", ended},
               {"beside", beside}};
    for (size_t i = 0; argc == 2 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(argv[1], all[i].name)) {
            GPU(gpu_set_device(0));
            all[i].run();
            return 0;
        }
    fprintf(stderr, "usage: mapped fill|first|newcomer|closed|peers|asked|given|waits|ended|beside\n");
    return 2;
}
