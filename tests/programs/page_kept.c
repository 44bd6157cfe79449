/*
 * A program with one context fills a device of 64 MiB, and in a capture frees a block and
 * takes it again. Before,
 *
 *   page_kept nearly_full   its first request takes most of the device
 *   page_kept ample_later   another family has most of it at the first request, gives it
 *                           back, and the program works in the room for a while
 *
 *   page_kept told            the same, but what cudaMemGetInfo tells then is taken, in pages
 *
 * Exit: 0 right, 1 something failed, 3 the block was not there again.
 */
#include "gpu.h"

#include "find.h"

enum { ROUNDS = 100 };

static const size_t mib = 1 << 20;

/* A CUmemAllocationProp. */
struct properties {
    int kind, handles;
    struct {
        int kind, id;
    } location;
    void *security;
    unsigned char flags[8];
    char rest[56];
};

static void begin_short(void) {
    int (*create)(uint64_t *, size_t, const void *, uint64_t), (*release)(uint64_t);
    const struct properties here = {.kind = 1, .location = {1, 0}};
    uint64_t handle;
    void *block;
    *(void **)&create = find("cuMemCreate");
    *(void **)&release = find("cuMemRelease");
    GPU(create(&handle, 62 * mib, &here, 0));
    GPU(gpu_malloc(&block, 1000));
    GPU(release(handle));
}

static void work(void) {
    void *block;
    for (int i = 0; i < ROUNDS; i++) {
        GPU(gpu_malloc(&block, (1 + i % 20) * mib));
        GPU(gpu_free(block));
    }
}

static int take_what_is_told(void) {
    size_t free_bytes, total;
    void *block;
    int refused = 0;
    GPU(gpu_mem_info(&free_bytes, &total));
    for (size_t i = 0; i < free_bytes / (2 * mib); i++)
        refused += gpu_malloc(&block, 2 * mib) != 0;
    return refused ? 3 : 0;
}

int main(int argc, char **argv) {
    const int is_nearly_full = argc == 2 && !strcmp(argv[1], "nearly_full");
    size_t size = is_nearly_full ? 900 << 10 : 20 * mib;
    gpu_stream stream;
    gpu_graph graph;
    void *block, *last = NULL;
    int refused;
    const int is_told = argc == 2 && !strcmp(argv[1], "told");
    if (!is_told && !is_nearly_full && (argc != 2 || strcmp(argv[1], "ample_later"))) {
        fprintf(stderr, "usage: page_kept nearly_full | ample_later | told\n");
        return 2;
    }
    GPU(gpu_set_device(0));
    if (is_told) {
        begin_short();
        return take_what_is_told();
    }
    GPU(gpu_stream_create(&stream));
    if (is_nearly_full) {
        GPU(gpu_malloc(&block, 60 * mib));
    } else {
        begin_short();
        work();
        /* Of one chunk the next requests get parts. */
        GPU(gpu_malloc(&block, 2 * size));
        GPU(gpu_free(block));
        GPU(gpu_malloc(&last, size));
    }
    while (!gpu_malloc(&block, is_nearly_full ? size : 2 * mib))
        last = is_nearly_full ? block : last;
    gpu_last_error();
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(gpu_free(last));
    refused = gpu_malloc(&last, size) != 0;
    GPU(gpu_capture_end(stream, &graph));
    return refused ? 3 : 0;
}
