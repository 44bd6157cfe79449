/*
 * Frees page-locked memory while copies from it and into it still wait for a
 * kernel, and allocates the same again. CUDA's own free waits for the device,
 * so what is written to the new blocks must not be what the copies read, nor
 * may the copies write into the new blocks.
 *
 * The argument says where the copies are: on a stream that does not order with
 * the default one (`apart`, also without an argument), on one that does
 * (`blocking`), on the default stream (`default`) or the thread's own one
 * (`thread`), on a stream of device 1 while the memory is of device 0 (`peer`).
 * With `destroyed` the stream is destroyed right after; with `capture` another
 * stream captures a graph meanwhile.
 *
 * Exit: 0 safe, 3 something was seen too early, 1 something failed.
 */
#include "stamp.h"

enum { BLOCKS = 16, BEFORE = 0x5a, AFTER = 0xa5, FROM_DEVICE = 0x3c };

static const uint64_t kernel_ns = 200 * 1000 * 1000;

static int is(const char *how, const char *name) { return !strcmp(how, name); }

static gpu_stream make_stream(const char *how) {
    gpu_stream stream = NULL;
    if (is(how, "thread"))
        return GPU_THREAD_STREAM;
    if (is(how, "blocking"))
        GPU(gpu_stream_create_blocking(&stream));
    else if (!is(how, "default"))
        GPU(gpu_stream_create(&stream));
    return stream;
}

static int check(const char *how, size_t size, gpu_stream captured) {
    const int device = is(how, "peer");
    const size_t edge = edge_of(size);
    unsigned char *read, *written, *blocks[BLOCKS], *seen = malloc(size);
    void *to, *from;
    gpu_event event;
    int damaged = 0, early = 0;
    if (!seen)
        exit(1);
    GPU(gpu_set_device(0));
    GPU(gpu_host_alloc((void **)&read, size, 1));
    GPU(gpu_host_alloc((void **)&written, size, 1));
    memset(read, BEFORE, size);
    memset(written, BEFORE, size);

    GPU(gpu_set_device(device));
    GPU(gpu_malloc(&to, size));
    GPU(gpu_malloc(&from, size));
    GPU(gpu_set(from, FROM_DEVICE, size));
    GPU(gpu_sync());
    gpu_stream stream = make_stream(how);
    GPU(gpu_event_create(&event));
    GPU(gpu_spin(stream, kernel_ns));
    GPU(gpu_copy_unified(to, read, size, stream));
    GPU(gpu_copy_unified(written, from, size, stream));
    GPU(gpu_event_record(event, stream));
    if (is(how, "destroyed"))
        GPU(gpu_stream_destroy(stream));

    GPU(gpu_set_device(0));
    if (captured)
        GPU(gpu_capture_begin(captured, GPU_CAPTURE_RELAXED));
    GPU(gpu_free_host(read));
    GPU(gpu_free_host(written));
    for (int i = 0; i < BLOCKS; i++) {
        GPU(gpu_host_alloc((void **)&blocks[i], size, 1));
        memset(blocks[i], AFTER, edge);
        memset(blocks[i] + size - edge, AFTER, edge);
    }
    if (captured) {
        gpu_graph graph;
        GPU(gpu_capture_end(captured, &graph));
    }
    int ran_on = gpu_event_query(event) == GPU_NOT_READY;
    GPU(gpu_event_sync(event));
    for (int i = 0; i < BLOCKS; i++)
        damaged += !gpu_is_all(blocks[i], AFTER, edge) ||
                   !gpu_is_all(blocks[i] + size - edge, AFTER, edge);
    GPU(gpu_set_device(device));
    GPU(gpu_copy_out(seen, to, size));
    early = !gpu_is_all(seen, BEFORE, size);

    GPU(gpu_free(to));
    GPU(gpu_free(from));
    GPU(gpu_event_destroy(event));
    if (stream && stream != GPU_THREAD_STREAM && !is(how, "destroyed"))
        GPU(gpu_stream_destroy(stream));
    GPU(gpu_set_device(0));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free_host(blocks[i]));
    GPU(gpu_sync());
    free(seen);
    printf("size %zu: %d read too late, %d damaged blocks; the copies outlasted "
           "the loop: %s\n",
           size, early, damaged, ran_on ? "yes" : "no");
    return early || damaged;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {100, 4096, 65536, 1 << 20, 5 << 20};
    const char *how = argc == 2 ? argv[1] : "apart";
    gpu_stream captured = NULL;
    int unsafe = 0;
    GPU(gpu_set_device(0));
    if (is(how, "capture"))
        GPU(gpu_stream_create(&captured));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        unsafe |= check(how, sizes[i], captured);
    if (unsafe)
        fprintf(stderr, "memory was handed out while a copy still used it\n");
    return unsafe ? 3 : 0;
}
