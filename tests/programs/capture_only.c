/*
 * A program that allocates and frees in captures alone, one after the other: what it has
 * freed in one is for a later one.
 *
 *   capture_only [one | host]
 *
 * With `one`, all of it is in one capture that stays open, first small blocks and then
 * large ones; with `host`, the same of page-locked memory, beside a block of the device.
 * Exit: 0 right, 1 something failed.
 */
#include "gpu.h"

#include "find.h"

enum { ROUNDS = 2000, SIZE = 300 * 1000 };

static void in_captures(gpu_stream stream) {
    int (*destroy)(gpu_graph);
    *(void **)&destroy = find("cuGraphDestroy");
    for (int round = 0; round < ROUNDS; round++) {
        gpu_graph graph;
        void *memory;
        GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
        GPU(gpu_malloc(&memory, SIZE));
        GPU(gpu_free(memory));
        GPU(gpu_capture_end(stream, &graph));
        GPU(destroy(graph));
    }
}

static void in_one(gpu_stream stream, int is_host) {
    static const size_t sizes[] = {4096, 65536, SIZE, 2 << 20};
    static const size_t bytes = 256 << 20;
    gpu_graph graph;
    void *block;
    GPU(gpu_malloc(&block, SIZE));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    for (int i = 0; i < 4; i++) {
        for (size_t done = 0; done < bytes; done += sizes[i]) {
            void *memory;
            if (is_host) {
                GPU(gpu_malloc_host(&memory, sizes[i]));
                GPU(gpu_free_host(memory));
            } else {
                GPU(gpu_malloc(&memory, sizes[i]));
                GPU(gpu_free(memory));
            }
        }
    }
    GPU(gpu_capture_end(stream, &graph));
}

int main(int argc, char **argv) {
    const int is_one = argc == 2 && !strcmp(argv[1], "one");
    const int is_host = argc == 2 && !strcmp(argv[1], "host");
    gpu_stream stream;
    if (argc > 1 + (is_one || is_host)) {
        fprintf(stderr, "usage: capture_only [one | host]\n");
        return 2;
    }
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    GPU(gpu_stream_create(&stream));
    if (is_one || is_host)
        in_one(stream, is_host);
    else
        in_captures(stream);
    return 0;
}
