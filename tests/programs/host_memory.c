/*
 * Daily work with page-locked host memory: all ways of asking for it, what is
 * said of a block and of its inside, copies both ways, and everything that is
 * not to be freed or unregistered. Each line: what was answered, and the last
 * error.
 *
 *   host_memory [REPEATS]
 *
 * With REPEATS, so many rounds of a program that allocates, copies and frees
 * the same; the last line counts the copies that were right.
 */
#include "gpu.h"

#include "find.h"

enum { PAGE = 4096, ALIGNMENT = 256, WAYS = 5, MOST = 3 << 20 };
enum { CONTEXT = 1, KIND = 2, DEVICE_POINTER = 3, HOST_POINTER = 4,
       ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12 };

typedef unsigned long long address;

static int (*attribute)(void *, int, address);
static int (*range)(address *, size_t *, address);
static int (*allocate_managed)(address *, size_t, unsigned);
static int (*allocate_plain)(void **, size_t);

static const size_t sizes[] = {1,       100,     PAGE,    PAGE + 1, 65536,
                               100000,  1 << 20, MOST};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void tell(const char *what, int code) {
    printf("%s: %d, last error %d\n", what, code, gpu_last_error());
}

static int allocate(int way, void **host, size_t size) {
    static const unsigned flags[WAYS] = {0, 0, 1, 2, 4};
    return way == 0 ? gpu_malloc_host(host, size)
                    : gpu_host_alloc(host, size, flags[way]);
}

/* Out to the device and back into another block. */
static int goes_round(unsigned char *host, size_t size, gpu_stream stream) {
    unsigned char *back;
    void *device;
    int right = 1;
    GPU(gpu_malloc(&device, size));
    GPU(gpu_malloc_host((void **)&back, size));
    for (size_t i = 0; i < size; i++)
        host[i] = (unsigned char)(i * 7 + size);
    memset(back, 0, size);
    GPU(gpu_copy_unified(device, host, size, stream));
    GPU(gpu_copy_unified(back, device, size, stream));
    GPU(gpu_stream_sync(stream));
    for (size_t i = 0; i < size && right; i++)
        right = back[i] == (unsigned char)(i * 7 + size);
    GPU(gpu_free_host(back));
    GPU(gpu_free(device));
    return right;
}

/* What the driver says of a byte of a block. */
static int is_known(unsigned char *host, size_t size, size_t at) {
    address where = (uintptr_t)host + at, start = 0, length = 0, seen = 0;
    unsigned kind = 0;
    int ordinal = -1;
    GPU(attribute(&kind, KIND, where));
    GPU(attribute(&ordinal, ORDINAL, where));
    GPU(attribute(&start, RANGE_START, where));
    GPU(attribute(&length, RANGE_SIZE, where));
    GPU(attribute(&seen, HOST_POINTER, where));
    int fits = start == (uintptr_t)host && length >= size &&
               length < size + PAGE;
    return kind == 1 && ordinal == 0 && seen == where && fits;
}

static void each_way(int way, gpu_stream stream) {
    int right = 0, aligned = 0, known = 0, mapped = 0, flagged = 0;
    unsigned plain = 0;
    unsigned char *blocks[SIZES];
    for (int i = 0; i < SIZES; i++) {
        size_t size = sizes[i], last = sizes[i] - 1;
        void *device = NULL;
        unsigned flags = 99;
        GPU(allocate(way, (void **)&blocks[i], size));
        aligned += (uintptr_t)blocks[i] % ALIGNMENT == 0;
        right += goes_round(blocks[i], size, stream);
        known += is_known(blocks[i], size, 0) && is_known(blocks[i], size, last);
        GPU(gpu_host_pointer(&device, blocks[i] + last));
        mapped += device == blocks[i] + last;
        GPU(gpu_host_flags(&flags, blocks[i] + last));
        plain = i == 0 ? flags : plain;
        flagged += flags == plain;
    }
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < i; j++)
            right -= blocks[i] < blocks[j] + sizes[j] &&
                     blocks[j] < blocks[i] + sizes[i];
    printf("way %d: %d right, %d aligned, %d known, %d mapped, %d with flags "
           "%u\n",
           way, right, aligned, known, mapped, flagged, plain);
    for (int i = 0; i < SIZES; i++)
        GPU(gpu_free_host(blocks[i]));
}

static void wrong_frees(void) {
    unsigned char *kept, *freed, *large, *own = aligned_alloc(PAGE, PAGE);
    void *device;
    address managed;
    unsigned flags = 99;
    int local = 0;
    GPU(gpu_malloc_host((void **)&kept, 10000));
    GPU(gpu_malloc_host((void **)&freed, 10000));
    GPU(gpu_malloc_host((void **)&large, 80 << 20));
    memset(kept, 0x3c, 10000);
    tell("nothing", gpu_free_host(NULL));
    tell("a local variable", gpu_free_host(&local));
    tell("an address nobody has", gpu_free_host((void *)(uintptr_t)4096));
    tell("an inner page", gpu_free_host(kept + PAGE));
    tell("an odd inner address", gpu_free_host(kept + 7));
    tell("inside a large block", gpu_free_host(large + (4 << 20)));
    GPU(gpu_free_host(freed));
    tell("a second free", gpu_free_host(freed));
    tell("the flags of what was freed", gpu_host_flags(&flags, freed));
    tell("and further inside", gpu_host_flags(&flags, freed + 5000));
    GPU(gpu_free_host(large));
    tell("a second free of a large block", gpu_free_host(large));
    tell("as device memory", gpu_free(kept));
    GPU(gpu_malloc(&device, 4096));
    tell("device memory", gpu_free_host(device));
    tell("and then as what it is", gpu_free(device));
    GPU(allocate_managed(&managed, 4096, 1));
    tell("managed memory", gpu_free_host((void *)(uintptr_t)managed));
    tell("and then as what it is", gpu_free((void *)(uintptr_t)managed));

    GPU(gpu_host_register(own, PAGE));
    tell("registered memory", gpu_free_host(own));
    tell("its flags", gpu_host_flags(&flags, own));
    tell("registered twice", gpu_host_register(own, PAGE));
    tell("unregistered", gpu_host_unregister(own));
    tell("unregistered twice", gpu_host_unregister(own));
    tell("a block registered", gpu_host_register(kept, 10000));
    tell("a block unregistered", gpu_host_unregister(kept));
    free(own);
    int intact = 1;
    for (int i = 0; i < 10000; i++)
        intact &= kept[i] == 0x3c;
    printf("the kept block holds: %d\n", intact);
    GPU(gpu_free_host(kept));
}

static void wrong_requests(void) {
    void *host = NULL, *before = &host;
    address start = 0;
    size_t length = 0;
    tell("no bytes", gpu_malloc_host(&host, 0));
    tell("no place", gpu_malloc_host(NULL, 100));
    tell("unknown flags", gpu_host_alloc(&host, 100, 1024));
    host = before;
    tell("more than there is", gpu_malloc_host(&host, (size_t)1 << 60));
    printf("the place: %s\n", host == before ? "as it was" : "changed");
    GPU(gpu_malloc_host(&host, 100));
    int code = range(&start, &length, (uintptr_t)host);
    printf("the range of its allocation: %d\n", code);
    GPU(gpu_free_host(host));
    if (!allocate_plain)
        return;
    GPU(allocate_plain(&host, 5000));
    memset(host, 1, 5000);
    tell("by the plain name", gpu_free_host(host));
}

static void repeat(int rounds, gpu_stream stream) {
    enum { BLOCKS = 24 };
    int right = 0;
    for (int round = 0; round < rounds; round++) {
        unsigned char *blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            size_t size = (size_t)3000 << i % 9;
            GPU(gpu_malloc_host((void **)&blocks[i], size));
            right += goes_round(blocks[i], size, stream);
        }
        for (int i = 0; i < BLOCKS; i++)
            GPU(gpu_free_host(blocks[i]));
    }
    printf("%d right of %d\n", right, rounds * BLOCKS);
}

int main(int argc, char **argv) {
    gpu_stream stream;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    if (argc == 2) {
        repeat(atoi(argv[1]), stream);
        return 0;
    }
    *(void **)&attribute = find("cuPointerGetAttribute");
    *(void **)&range = find("cuMemGetAddressRange_v2");
    *(void **)&allocate_managed = find("cuMemAllocManaged");
    *(void **)&allocate_plain = find_if_there("cuMemAllocHost_v2");
    for (int way = 0; way < WAYS; way++)
        each_way(way, stream);
    wrong_frees();
    wrong_requests();
    GPU(gpu_stream_destroy(stream));
    return 0;
}
