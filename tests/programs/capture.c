/*
 * Allocates and frees while a stream captures a graph, in the relaxed mode,
 * in which CUDA allows it: little at first, then a quarter of the device's
 * memory, ROUNDS times.
 *
 *   capture ROUNDS
 *
 * The capture must come out whole, and the graph must do what was captured,
 * before and after.
 */
#include "gpu.h"

enum { WORDS = 4096 };

static int right_words(const void *block, uint32_t value) {
    static uint32_t host[WORDS];
    int right = 0;
    GPU(gpu_copy_out(host, block, sizeof host));
    for (int i = 0; i < WORDS; i++)
        right += host[i] == value;
    return right;
}

/* What a program does with memory while it captures. */
static void allocate_meanwhile(size_t large, int rounds) {
    void *small[8], *block;
    for (int i = 0; i < 8; i++)
        GPU(gpu_malloc(&small[i], (size_t)1000 << i));
    for (int i = 0; i < 8; i++)
        GPU(gpu_free(small[i]));
    for (int round = 0; round < rounds; round++) {
        GPU(gpu_malloc(&block, large));
        GPU(gpu_free(block));
    }
}

int main(int argc, char **argv) {
    int rounds = argc == 2 ? atoi(argv[1]) : 0;
    gpu_stream stream;
    gpu_graph graph;
    void *buffer, *executable;
    size_t total;
    if (rounds < 1) {
        fprintf(stderr, "usage: capture ROUNDS\n");
        return 2;
    }
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_mem_info(NULL, &total));
    GPU(gpu_malloc(&buffer, WORDS * sizeof(uint32_t)));
    /* Loads the kernels, which a capture would forbid. */
    GPU(gpu_fill(stream, buffer, 1, WORDS, 1000));
    GPU(gpu_stream_sync(stream));

    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(gpu_fill(stream, buffer, 2, WORDS, 1000));
    allocate_meanwhile(total / 4, rounds);
    GPU(gpu_fill(stream, buffer, 3, WORDS, 1000));
    GPU(gpu_capture_end(stream, &graph));
    GPU(gpu_graph_prepare(&executable, graph));
    printf("captured, not run: %d words as before\n", right_words(buffer, 1));

    GPU(gpu_graph_launch(executable, stream));
    GPU(gpu_stream_sync(stream));
    printf("run: %d words right\n", right_words(buffer, 3));
    allocate_meanwhile(total / 4, rounds);
    GPU(gpu_graph_launch(executable, stream));
    GPU(gpu_stream_sync(stream));
    printf("run again: %d words right\n", right_words(buffer, 3));
    GPU(gpu_graph_destroy(executable));
    GPU(gpu_free(buffer));
    GPU(gpu_stream_destroy(stream));
    return 0;
}
