/*
 * Hands every kind of memory to the plain free and to the free that is
 * ordered in a stream: of the plain allocation, of a stream's order, managed,
 * pitched, the host's; and to the plain free of a thread that never set a device.
 * Each line: what was answered, and the last error.
 */
#include "gpu.h"

#include "find.h"

#include <pthread.h>

enum { SIZE = 1 << 20, STAMP = 0x71 };

typedef unsigned long long address;

static int (*allocate_in_order)(address *, size_t, void *);
static int (*free_in_order)(address, void *);
static int (*allocate_managed)(address *, size_t, unsigned);
static int (*allocate_pitch)(address *, size_t *, size_t, size_t, unsigned);

#ifdef USE_DRIVER
static int release_in_order(void *block, gpu_stream stream) {
    return free_in_order((uintptr_t)block, stream);
}
#else
int cudaFreeAsync(void *device, gpu_stream stream);

static int release_in_order(void *block, gpu_stream stream) {
    return cudaFreeAsync(block, stream);
}
#endif

static void *pointer(address at) { return (void *)(uintptr_t)at; }

static void tell(const char *what, int code) {
    printf("%s: %d, last error %d\n", what, code, gpu_last_error());
}

static void in_stream_order(gpu_stream stream) {
    address at;
    void *block;
    if (!allocate_in_order) {
        printf("this driver has no order of allocations\n");
        return;
    }
    GPU(allocate_in_order(&at, SIZE, stream));
    GPU(gpu_stream_sync(stream));
    tell("a stream's block, plainly freed", gpu_free(pointer(at)));
    GPU(allocate_in_order(&at, SIZE, stream));
    tell("a stream's block, freed in order",
         release_in_order(pointer(at), stream));
    GPU(gpu_malloc(&block, SIZE));
    GPU(gpu_fill(stream, block, 5, SIZE / 4, 3000000));
    tell("a plain block, freed in order under a kernel",
         release_in_order(block, stream));
    GPU(gpu_stream_sync(stream));
    GPU(gpu_malloc(&block, SIZE));
    tell("a plain block, freed in order on the default stream",
         release_in_order(block, NULL));
    tell("nothing, freed in order", release_in_order(NULL, stream));
    tell("garbage, freed in order",
         release_in_order((void *)(uintptr_t)0x1230, stream));
}

static void *free_there(void *block) {
    tell("freed by a thread without a device", gpu_free(block));
    return NULL;
}

static void on_another_thread(gpu_stream stream) {
    pthread_t thread;
    address each[3];
    int count = 0;
    void *block;
    GPU(gpu_malloc(&block, SIZE));
    GPU(gpu_fill(stream, block, 5, SIZE / 4, 3000000));
    each[count++] = (uintptr_t)block;
    GPU(allocate_managed(&each[count++], SIZE, 1));
    if (allocate_in_order) {
        GPU(allocate_in_order(&each[count++], SIZE, stream));
        GPU(gpu_stream_sync(stream));
    }
    for (int i = 0; i < count; i++)
        if (pthread_create(&thread, NULL, free_there, pointer(each[i])) ||
            pthread_join(thread, NULL))
            exit(1);
}

int main(void) {
    gpu_stream stream;
    void *kept, *block, *host;
    unsigned char byte = 0;
    address at;
    size_t pitch = 0;
    GPU(gpu_set_device(0));
    *(void **)&allocate_in_order = find_if_there("cuMemAllocAsync");
    *(void **)&free_in_order = find_if_there("cuMemFreeAsync");
    *(void **)&allocate_managed = find("cuMemAllocManaged");
    *(void **)&allocate_pitch = find("cuMemAllocPitch_v2");
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&kept, SIZE));
    GPU(gpu_set(kept, STAMP, SIZE));

    in_stream_order(stream);
    GPU(allocate_managed(&at, SIZE, 1));
    tell("managed memory", gpu_free(pointer(at)));
    tell("managed memory again", gpu_free(pointer(at)));
    GPU(allocate_pitch(&at, &pitch, 1000, 40, 4));
    printf("pitch %zu\n", pitch);
    tell("pitched memory", gpu_free(pointer(at)));
    GPU(gpu_malloc_host(&host, SIZE));
    tell("pinned memory", gpu_free(host));
    tell("pinned memory, by its own free", gpu_free_host(host));
    tell("nothing", gpu_free(NULL));
    GPU(gpu_malloc(&block, SIZE));
    tell("a device's block as the host's", gpu_free_host(block));
    GPU(gpu_set(block, 1, SIZE));
    tell("and then as what it is", gpu_free(block));
    on_another_thread(stream);

    GPU(gpu_copy_out(&byte, (char *)kept + SIZE - 1, 1));
    printf("the kept block: %x\n", byte);
    GPU(gpu_free(kept));
    GPU(gpu_stream_destroy(stream));
    return 0;
}
