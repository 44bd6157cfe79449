/*
 * Resets the device with memory live, and goes on with it, twice. What is
 * allocated afterwards must be memory that is there.
 */
#include "gpu.h"

enum { BLOCKS = 8 };

static int use(uint32_t seed) {
    void *blocks[BLOCKS];
    int right = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t word = seed + i;
        GPU(gpu_malloc(&blocks[i], (size_t)4096 << (2 * i)));
        GPU(gpu_copy_in(blocks[i], &word, sizeof word));
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t word = 0;
        GPU(gpu_copy_out(&word, blocks[i], sizeof word));
        right += word == seed + i;
    }
    for (int i = 0; i < BLOCKS; i += 2)
        GPU(gpu_free(blocks[i]));
    return right;
}

int main(void) {
    GPU(gpu_set_device(0));
    for (uint32_t round = 1; round <= 3; round++) {
        printf("round %u: %d right\n", round, use(round * 100));
        GPU(gpu_reset());
        GPU(gpu_set_device(0));
    }
    void *block;
    size_t available, total;
    GPU(gpu_mem_info(&available, &total));
    printf("all came back: %d\n", available + ((size_t)64 << 20) >= total);
    GPU(gpu_malloc(&block, available - ((size_t)64 << 20)));
    printf("and can be had\n");
    return 0;
}
