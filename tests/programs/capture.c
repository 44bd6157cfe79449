/*
 * Allocates and frees while a stream captures a graph, in the relaxed mode,
 * in which CUDA allows it: little at first, then several times what the
 * device has. The capture must come out whole and the graph must do what was
 * captured, before and after.
 */
#include "gpu.h"

enum { WORDS = 4096, ROUNDS = 64 };

static int right_words(const void *block, uint32_t value) {
    static uint32_t host[WORDS];
    int right = 0;
    GPU(gpu_copy_out(host, block, sizeof host));
    for (int i = 0; i < WORDS; i++)
        right += host[i] == value;
    return right;
}

/* What a program does with memory while it captures. */
static void allocate_meanwhile(size_t large) {
    void *small[8], *block;
    for (int i = 0; i < 8; i++)
        GPU(gpu_malloc(&small[i], (size_t)1000 << i));
    for (int i = 0; i < 8; i++)
        GPU(gpu_free(small[i]));
    for (int round = 0; round < ROUNDS; round++) {
        GPU(gpu_malloc(&block, large));
        GPU(gpu_free(block));
    }
}

int main(void) {
    gpu_stream stream;
    gpu_graph graph;
    void *buffer, *executable;
    size_t total;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_mem_info(NULL, &total));
    GPU(gpu_malloc(&buffer, WORDS * sizeof(uint32_t)));
    /* Loads the kernels, which a capture would forbid. */
    GPU(gpu_fill(stream, buffer, 1, WORDS, 1000));
    GPU(gpu_stream_sync(stream));

    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(gpu_fill(stream, buffer, 2, WORDS, 1000));
    allocate_meanwhile(total / 4);
    GPU(gpu_fill(stream, buffer, 3, WORDS, 1000));
    GPU(gpu_capture_end(stream, &graph));
    GPU(gpu_graph_prepare(&executable, graph));
    printf("captured, not run: %d words as before\n", right_words(buffer, 1));

    GPU(gpu_graph_launch(executable, stream));
    GPU(gpu_stream_sync(stream));
    printf("run: %d words right\n", right_words(buffer, 3));
    allocate_meanwhile(total / 4);
    GPU(gpu_graph_launch(executable, stream));
    GPU(gpu_stream_sync(stream));
    printf("run again: %d words right\n", right_words(buffer, 3));
    GPU(gpu_graph_destroy(executable));
    GPU(gpu_free(buffer));
    GPU(gpu_stream_destroy(stream));
    return 0;
}
