/*
 * Fills a device, and in a capture frees two blocks behind a kernel that still runs. A
 * stream is made then, and memory taken past the pool: there is room for it.
 *
 *   capture_room MIB     blocks of so many MiB
 *
 * Exit: 0 right, 1 something failed, 3 a call found no room.
 */
#include "gpu.h"

enum { MOST = 512 };

static const uint64_t kernel_ns = 5 * 1000 * 1000;

int main(int argc, char **argv) {
    const size_t size = argc == 2 ? strtoull(argv[1], NULL, 10) << 20 : 0;
    gpu_stream stream, work, late;
    gpu_graph graph;
    void *blocks[MOST], *past;
    int count = 0, refused;
    if (!size) {
        fprintf(stderr, "usage: capture_room MIB\n");
        return 2;
    }
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_stream_create(&work));
    while (count < MOST && !gpu_malloc(&blocks[count], size))
        count++;
    /* Loads the kernels, which a capture would forbid. */
    GPU(gpu_fill(work, blocks[0], 0, 1, 0));
    GPU(gpu_stream_sync(work));
    while (!gpu_malloc(&past, 2 << 20)) {
    }
    gpu_last_error();
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    for (int i = 0; i < 2; i++) {
        GPU(gpu_fill(work, blocks[i], 1, 1, kernel_ns));
        GPU(gpu_free(blocks[i]));
    }
    refused = gpu_stream_create(&late) != 0;
    refused += gpu_malloc_async(&past, size, work) != 0;
    GPU(gpu_capture_end(stream, &graph));
    printf("refused: %d\n", refused);
    return refused ? 3 : 0;
}
