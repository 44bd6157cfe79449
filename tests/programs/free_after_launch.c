/*
 * Frees a buffer while a kernel that will write to it is still running, then
 * allocates blocks of the same size. CUDA's own free waits for the device, so
 * no block may lie where the buffer was before the kernel has ended.
 *
 * An overlap counts if the kernel is still running after the allocation has
 * returned: an allocator may as well wait inside. The data tells
 * independently: a late write into a new block changes what was put there.
 *
 * The argument says where the kernel runs: on a stream that does not order
 * with the default one (`apart`, also without an argument), on one that does
 * (`blocking`), on the default stream (`default`) or the thread's own one
 * (`thread`), or on device 1 while the buffer is memory of device 0 (`peer`).
 * With `destroyed` and `destroyed-blocking` the stream is one that is destroyed
 * right after the launch.
 *
 * Exit: 0 safe, 3 an overlap was seen, 1 something failed.
 */
#include "stamp.h"

enum { BLOCKS = 16 };

static const uint64_t kernel_ns = 200 * 1000 * 1000;

static int overlaps(const void *a, const void *b, size_t size) {
    uintptr_t low = (uintptr_t)a, high = (uintptr_t)b;
    return low < high + size && high < low + size;
}

static int is(const char *how, const char *name) { return !strcmp(how, name); }

static gpu_stream make_stream(const char *how) {
    gpu_stream stream = NULL;
    if (is(how, "thread"))
        return GPU_THREAD_STREAM;
    if (is(how, "blocking") || is(how, "destroyed-blocking"))
        GPU(gpu_stream_create_blocking(&stream));
    else if (!is(how, "default"))
        GPU(gpu_stream_create(&stream));
    return stream;
}

static void destroy_stream(gpu_stream stream) {
    if (stream && stream != GPU_THREAD_STREAM)
        GPU(gpu_stream_destroy(stream));
}

/* The kernel runs where `how` says, the memory is device 0's. */
static int check(const char *how, size_t size) {
    const int device = is(how, "peer");
    const int destroyed = !strncmp(how, "destroyed", 9);
    gpu_stream stream;
    void *buffer, *blocks[BLOCKS], *again;
    gpu_event event;
    int early = 0;
    GPU(gpu_malloc(&buffer, size));

    GPU(gpu_set_device(device));
    stream = make_stream(how);
    GPU(gpu_event_create(&event));
    GPU(gpu_fill(stream, buffer, late_value, size / 4, kernel_ns));
    GPU(gpu_event_record(event, stream));
    if (destroyed)
        destroy_stream(stream);
    GPU(gpu_set_device(0));
    GPU(gpu_free(buffer));
    for (int i = 0; i < BLOCKS; i++) {
        GPU(gpu_malloc(&blocks[i], size));
        int running = gpu_event_query(event) == GPU_NOT_READY;
        early += running && overlaps(blocks[i], buffer, size);
        stamp(blocks[i], STAMP, size);
    }
    int ran_on = gpu_event_query(event) == GPU_NOT_READY;
    GPU(gpu_event_sync(event));
    int damaged = count_damaged(blocks, BLOCKS, size);

    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free(blocks[i]));
    GPU(gpu_sync());
    GPU(gpu_malloc(&again, size));
    GPU(gpu_free(again));
    GPU(gpu_event_destroy(event));
    if (!destroyed)
        destroy_stream(stream);
    printf("size %zu: %d early overlaps, %d damaged blocks; the kernel "
           "outlasted the loop: %s\n",
           size, early, damaged, ran_on ? "yes" : "no");
    return early || damaged;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {512, 4096, 65536, 1 << 20, 4 << 20};
    const char *how = argc == 2 ? argv[1] : "apart";
    int unsafe = 0;
    if (is(how, "peer")) {
        GPU(gpu_set_device(1));
        GPU(gpu_enable_peer(0));
    }
    GPU(gpu_set_device(0));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        unsafe |= check(how, sizes[i]);
    if (unsafe)
        fprintf(stderr, "memory was handed out while a kernel still used it\n");
    return unsafe ? 3 : 0;
}
