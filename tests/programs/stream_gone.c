/*
 * Destroys a stream that has a kernel pending, then frees the kernel's memory
 * and allocates anew: the work goes on without its stream, and nobody may be
 * given the memory before it has ended. The same where the memory is freed
 * before the stream goes, and where a new stream comes at the old handle.
 *
 * Exit: 0 safe, 3 a late write was seen in somebody else's block.
 */
#include "stamp.h"

enum { BLOCKS = 24 };

static const uint64_t kernel_ns = 50 * 1000 * 1000;

enum order { STREAM_FIRST, MEMORY_FIRST, ANOTHER_STREAM };

static int check(enum order order, size_t size) {
    gpu_stream stream, next = NULL;
    gpu_stream other;
    void *buffer, *blocks[BLOCKS];
    GPU(gpu_stream_create(&stream));
    GPU(gpu_stream_create(&other));
    GPU(gpu_malloc(&buffer, size));
    GPU(gpu_fill(stream, buffer, late_value, size / 4, kernel_ns));
    if (order == MEMORY_FIRST)
        GPU(gpu_free(buffer));
    GPU(gpu_stream_destroy(stream));
    if (order == ANOTHER_STREAM)
        GPU(gpu_stream_create(&next));
    if (order != MEMORY_FIRST)
        GPU(gpu_free(buffer));
    for (int i = 0; i < BLOCKS; i++) {
        GPU(gpu_malloc(&blocks[i], size));
        GPU(gpu_fill(other, blocks[i], STAMP * 0x1010101u, size / 4, 100));
    }
    GPU(gpu_sync());
    int damaged = count_damaged(blocks, BLOCKS, size);
    printf("order %d, size %zu: %d damaged\n", order, size, damaged);
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free(blocks[i]));
    if (next)
        GPU(gpu_stream_destroy(next));
    GPU(gpu_stream_destroy(other));
    return damaged;
}

int main(void) {
    static const size_t sizes[] = {512, 65536, 3 << 20};
    int damaged = 0;
    GPU(gpu_set_device(0));
    for (enum order order = STREAM_FIRST; order <= ANOTHER_STREAM; order++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            damaged += check(order, sizes[i]);
    return damaged ? 3 : 0;
}
