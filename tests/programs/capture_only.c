/*
 * A program that allocates and frees in captures alone, one after the other: what it has
 * freed in one is for a later one.
 *
 * Exit: 0 right, 1 something failed.
 */
#include "gpu.h"

#include "find.h"

enum { ROUNDS = 2000, SIZE = 300 * 1000 };

int main(void) {
    int (*destroy)(gpu_graph);
    gpu_stream stream;
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    *(void **)&destroy = find("cuGraphDestroy");
    GPU(gpu_stream_create(&stream));
    for (int round = 0; round < ROUNDS; round++) {
        gpu_graph graph;
        void *memory;
        GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
        GPU(gpu_malloc(&memory, SIZE));
        GPU(gpu_free(memory));
        GPU(gpu_capture_end(stream, &graph));
        GPU(destroy(graph));
    }
    return 0;
}
