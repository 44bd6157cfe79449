/*
 * Green contexts: parts of a device. A kernel on the stream of one, in which
 * nothing was ever allocated, goes on when memory is freed; memory asked for in
 * one outlives it; the last to go takes the primary context and its memory, and
 * what another process shared is opened anew after that; and one that went with
 * that leaves nothing behind at its handle. With `alone` no other process shares
 * anything.
 */
#include "gpu.h"

#include <sys/wait.h>
#include <unistd.h>

#include "find.h"

enum { SIZE = 1 << 20, FLAGS = 1, SM = 1, NON_BLOCKING = 1 };
/* Attributes of a pointer. */
enum { CONTEXT = 1, ORDINAL = 9 };

typedef void *handle;

static int (*resource_of)(int, void *, int);
static int (*describe)(handle *, void *, unsigned);
static int (*create)(handle *, handle, int, unsigned);
static int (*destroy)(handle);
static int (*context_of)(handle *, handle);
static int (*stream_in)(gpu_stream *, handle, unsigned, int);
static int (*push)(handle);
static int (*pop)(handle *);
static int (*state)(int, unsigned *, int *);
static int (*take)(unsigned long long *, size_t);
static int (*give)(unsigned long long);
static int (*copy_out)(void *, unsigned long long, size_t);
static int (*fill_words)(unsigned long long, unsigned, size_t, gpu_stream);
static int (*wait_for)(gpu_stream);
static int (*reset)(int);
static int (*retain)(handle *, int);
static int (*create_whole)(handle *, unsigned, int);
static int (*ask)(void *, int, unsigned long long);

static handle make(int device) {
    unsigned char resource[256] = {0};
    handle description, green;
    GPU(resource_of(device, resource, SM));
    GPU(describe(&description, resource, 1));
    GPU(create(&green, description, device, FLAGS));
    return green;
}

/* Device 0's green context copies from what device 1 then frees. */
static void work_of_one_that_never_allocates(void) {
    static uint32_t seen[SIZE / 4];
    unsigned long long to;
    void *from, *next;
    gpu_stream stream;
    handle context, green = make(0);
    GPU(stream_in(&stream, green, NON_BLOCKING, 0));
    GPU(context_of(&context, green));
    GPU(gpu_set_device(1));
    GPU(gpu_malloc(&from, SIZE));
    GPU(gpu_fill(NULL, from, 7, SIZE / 4, 0));
    GPU(gpu_sync());
    GPU(push(context));
    GPU(take(&to, SIZE));
    GPU(gpu_spin(stream, 50000000));
    GPU(gpu_copy_unified((void *)(uintptr_t)to, from, SIZE, stream));
    GPU(pop(NULL));
    GPU(gpu_free(from));
    GPU(gpu_malloc(&next, SIZE));
    GPU(gpu_fill(NULL, next, 9, SIZE / 4, 0));
    GPU(gpu_sync());
    GPU(push(context));
    GPU(wait_for(stream));
    GPU(copy_out(seen, to, SIZE));
    GPU(pop(NULL));
    int old = 1;
    for (int i = 0; i < SIZE / 4; i++)
        old &= seen[i] == 7;
    printf("it copied what was there: %d\n", old);
    GPU(gpu_free(next));
    GPU(gpu_stream_destroy(stream));
    GPU(destroy(green));
    GPU(gpu_set_device(0));
    memset(seen, 0, SIZE);
    GPU(copy_out(seen, to, SIZE));
    printf("its memory stays: %d\n", seen[0] == 7 && seen[SIZE / 4 - 1] == 7);
    GPU(give(to));
}

/* Whether the primary context of a device is there. */
static int is_active(int device) {
    unsigned flags;
    int active = -1;
    GPU(state(device, &flags, &active));
    return active;
}

/* Device 2 is used by nobody else. */
static void the_last_takes_all(void) {
    unsigned long long blocks[20];
    for (int round = 0; round < 3; round++) {
        handle context, greens[2] = {make(2), make(2)};
        GPU(context_of(&context, greens[0]));
        GPU(push(context));
        for (int i = 0; i < 20; i++) {
            GPU(take(&blocks[i], SIZE));
            GPU(fill_words(blocks[i], 5, SIZE / 4, NULL));
        }
        for (int i = 0; i < 10; i++)
            GPU(give(blocks[i]));
        GPU(wait_for(NULL));
        GPU(pop(NULL));
        GPU(destroy(greens[1]));
        printf("there: %d\n", is_active(2));
        GPU(destroy(greens[0]));
        printf("there: %d, a free of what it had: %d\n", is_active(2),
               give(blocks[15]) != 0);
    }
}

/* It began on a stream of the primary context, while a part was current. */
static void a_capture_of_the_whole_goes_on(void) {
    handle context, green = make(0);
    gpu_stream stream;
    gpu_graph graph;
    void *blocks[4];
    GPU(gpu_stream_create(&stream));
    GPU(context_of(&context, green));
    GPU(push(context));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(pop(NULL));
    GPU(destroy(green));
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 4; i++)
            GPU(gpu_malloc(&blocks[i], 100000));
        for (int i = 0; i < 4; i++)
            GPU(gpu_free(blocks[i]));
    }
    printf("its capture ends well: %d\n",
           gpu_capture_end(stream, &graph) == 0);
}

/* A process that lets this one use its memory, and ends when `stay` is closed. */
static struct {
    pid_t id;
    int offer, stay;
} sharer;

/* Before this process has touched CUDA. */
static void start_sharer(void) {
    int offer[2], stay[2];
    if (pipe(offer) || pipe(stay) || (sharer.id = fork()) < 0)
        exit(1);
    if (sharer.id == 0) {
        gpu_ipc_handle shared;
        void *block;
        char end;
        close(stay[1]);
        GPU(gpu_set_device(2));
        GPU(gpu_malloc(&block, SIZE));
        GPU(gpu_set(block, 7, SIZE));
        GPU(gpu_sync());
        GPU(gpu_ipc_get(&shared, block));
        _exit(write(offer[1], &shared, sizeof shared) != sizeof shared ||
              read(stay[0], &end, 1) != 0);
    }
    close(offer[1]);
    close(stay[0]);
    sharer.offer = offer[0];
    sharer.stay = stay[1];
}

/* Each of these parts is the last of device 2, and has the handle of the one
 * before: what that one had opened went with it. */
static void what_another_process_shares(void) {
    gpu_ipc_handle shared;
    if (read(sharer.offer, &shared, sizeof shared) != sizeof shared)
        exit(1);
    for (int round = 0; round < 3; round++) {
        handle context, owner = NULL, green = make(2);
        void *opened;
        unsigned char byte = 0;
        GPU(context_of(&context, green));
        GPU(push(context));
        GPU(gpu_ipc_open(&opened, shared));
        GPU(gpu_copy_out(&byte, opened, 1));
        int known = ask(&owner, CONTEXT, (uintptr_t)opened) == 0;
        printf("shared: %d, and the driver knows it: %d\n", byte == 7, known);
        GPU(pop(NULL));
        GPU(destroy(green));
    }
    int status;
    close(sharer.stay);
    if (waitpid(sharer.id, &status, 0) != sharer.id || status)
        exit(1);
}

/* A reset takes the parts too, and their handles come back. */
static void its_handle_comes_back(void) {
    handle context, primary, next = NULL, green = make(2);
    unsigned long long block;
    GPU(context_of(&context, green));
    GPU(push(context));
    GPU(take(&block, SIZE));
    GPU(pop(NULL));
    GPU(reset(2));
    destroy(green);
    GPU(retain(&primary, 2));
    GPU(push(primary));
    GPU(take(&block, SIZE));
    GPU(pop(NULL));
    for (int i = 0; i < 64 && next != context; i++)
        GPU(create_whole(&next, 0, 1));
    int device = -1;
    handle owner = NULL;
    GPU(take(&block, SIZE));
    GPU(ask(&device, ORDINAL, block));
    GPU(ask(&owner, CONTEXT, block));
    printf("its memory is of device %d and its own: %d\n", device, owner == next);
    GPU(give(block));
}

int main(int argc, char **argv) {
    const int alone = argc == 2 && !strcmp(argv[1], "alone");
    *(void **)&create = find_if_there("cuGreenCtxStreamCreate");
    if (create && !alone)
        start_sharer();
    GPU(gpu_set_device(0));
    if (!create) {
        printf("no green contexts here\n");
        return 0;
    }
    *(void **)&resource_of = find("cuDeviceGetDevResource");
    *(void **)&describe = find("cuDevResourceGenerateDesc");
    *(void **)&create = find("cuGreenCtxCreate");
    *(void **)&destroy = find("cuGreenCtxDestroy");
    *(void **)&context_of = find("cuCtxFromGreenCtx");
    *(void **)&stream_in = find("cuGreenCtxStreamCreate");
    *(void **)&push = find("cuCtxPushCurrent_v2");
    *(void **)&pop = find("cuCtxPopCurrent_v2");
    *(void **)&state = find("cuDevicePrimaryCtxGetState");
    *(void **)&take = find("cuMemAlloc_v2");
    *(void **)&give = find("cuMemFree_v2");
    *(void **)&copy_out = find("cuMemcpyDtoH_v2");
    *(void **)&fill_words = find("cuMemsetD32Async");
    *(void **)&wait_for = find("cuStreamSynchronize");
    *(void **)&reset = find("cuDevicePrimaryCtxReset_v2");
    *(void **)&retain = find("cuDevicePrimaryCtxRetain");
    *(void **)&create_whole = find("cuCtxCreate_v2");
    *(void **)&ask = find("cuPointerGetAttribute");
    work_of_one_that_never_allocates();
    the_last_takes_all();
    a_capture_of_the_whole_goes_on();
    if (!alone)
        what_another_process_shares();
    its_handle_comes_back();
    return 0;
}
