/*
 * Threads take and free blocks while one stream captures a graph, in the relaxed
 * mode, on a device that is larger than what they hold at a time, and smaller
 * than what they free meanwhile.
 *
 *   capture_crowd BLOCKS    each of eight threads holds up to so many blocks
 *
 * All blocks are of one size, so whatever is free fits.
 */
#include "gpu.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, MOST = 1024, STEPS = 3000, SIZE = 96 << 10 };

static int blocks;
static atomic_int refused;

static void *work(void *number) {
    static _Thread_local void *held[MOST];
    uint32_t random = 1 + (uint32_t)(size_t)number * 7919;
    GPU(gpu_set_device(0));
    for (int step = 0; step < STEPS; step++) {
        random = random * 1103515245 + 12345;
        void **block = &held[(random >> 8) % (unsigned)blocks];
        if (*block) {
            GPU(gpu_free(*block));
            *block = NULL;
        } else if (gpu_malloc(block, SIZE)) {
            refused++;
            *block = NULL;
        }
    }
    for (int i = 0; i < blocks; i++)
        if (held[i])
            GPU(gpu_free(held[i]));
    return NULL;
}

int main(int argc, char **argv) {
    gpu_stream stream;
    gpu_graph graph;
    void *buffer, *executable;
    pthread_t threads[THREADS];
    blocks = argc == 2 ? atoi(argv[1]) : 0;
    if (blocks < 1 || blocks > MOST)
        return 2;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&buffer, SIZE));
    GPU(gpu_fill(stream, buffer, 1, 1, 1000));
    GPU(gpu_stream_sync(stream));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(gpu_fill(stream, buffer, 2, 1, 1000));
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    GPU(gpu_capture_end(stream, &graph));
    GPU(gpu_graph_prepare(&executable, graph));
    GPU(gpu_graph_destroy(executable));
    GPU(gpu_free(buffer));
    GPU(gpu_stream_destroy(stream));
    printf("refused: %d\n", refused);
    return 0;
}
