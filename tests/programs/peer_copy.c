/*
 * Copies out of device 0's memory on a stream of device 1, without access of
 * either to the other, and frees the source while the copy still waits for a
 * kernel. What is allocated and written on device 0 afterwards must not change
 * what the copy reads.
 *
 *   peer_copy peer|unified|host [capture|there]
 *
 * `peer` names both devices, `unified` only the addresses; `host` copies to
 * pinned memory, so that device 1 never allocates any of its own. With
 * `capture`, a stream of device 0 captures a graph meanwhile; with `there`, the
 * source is freed while device 1, which copies it, is the current one.
 *
 * Exit: 0 right, 3 the copy read what came later, 1 something failed.
 */
#include "stamp.h"

enum { BLOCKS = 16, BEFORE = 0x5a, AFTER = 0xa5 };

static const uint64_t kernel_ns = 200 * 1000 * 1000;

static void start_copy(const char *how, void *to, const void *from, size_t size,
                       gpu_stream stream) {
    GPU(gpu_spin(stream, kernel_ns));
    if (!strcmp(how, "peer"))
        GPU(gpu_copy_peer(to, 1, from, 0, size, stream));
    else
        GPU(gpu_copy_unified(to, from, size, stream));
}

/* Whether the copy brought what was there when it was asked for. */
static int check(const char *how, gpu_stream stream, gpu_stream captured,
                 int there, size_t size) {
    const int to_host = !strcmp(how, "host");
    unsigned char *host = malloc(size);
    void *from, *to, *blocks[BLOCKS];
    int right;
    if (!host)
        exit(1);
    memset(host, BEFORE, size);
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&from, size));
    GPU(gpu_copy_in(from, host, size));

    GPU(gpu_set_device(1));
    GPU(to_host ? gpu_malloc_host(&to, size) : gpu_malloc(&to, size));
    start_copy(how, to, from, size, stream);

    if (there)
        GPU(gpu_free(from));
    GPU(gpu_set_device(0));
    if (captured)
        GPU(gpu_capture_begin(captured, GPU_CAPTURE_RELAXED));
    if (!there)
        GPU(gpu_free(from));
    for (int i = 0; i < BLOCKS; i++) {
        GPU(gpu_malloc(&blocks[i], size));
        stamp(blocks[i], AFTER, size);
    }
    if (captured) {
        gpu_graph graph;
        GPU(gpu_capture_end(captured, &graph));
    }
    GPU(gpu_set_device(1));
    GPU(gpu_stream_sync(stream));
    if (to_host)
        memcpy(host, to, size);
    else
        GPU(gpu_copy_out(host, to, size));
    right = gpu_is_all(host, BEFORE, size);

    GPU(to_host ? gpu_free_host(to) : gpu_free(to));
    GPU(gpu_set_device(0));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free(blocks[i]));
    free(host);
    printf("size %zu: %s\n", size, right ? "right" : "wrong");
    return right;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {512, 65536, 4 << 20};
    gpu_stream stream, captured = NULL;
    int right = 1;
    const int capture = argc == 3 && !strcmp(argv[2], "capture");
    const int there = argc == 3 && !strcmp(argv[2], "there");
    if (argc != 2 + capture + there) {
        fprintf(stderr, "usage: peer_copy peer|unified|host [capture|there]\n");
        return 2;
    }
    if (capture) {
        GPU(gpu_set_device(0));
        GPU(gpu_stream_create(&captured));
    }
    GPU(gpu_set_device(1));
    GPU(gpu_stream_create(&stream));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        right &= check(argv[1], stream, captured, there, sizes[i]);
    GPU(gpu_set_device(1));
    GPU(gpu_stream_destroy(stream));
    return right ? 0 : 3;
}
