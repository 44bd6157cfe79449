/*
 * Resets the device with memory live, and goes on with it, twice. What is
 * allocated afterwards must be memory that is there. Then the same with a
 * second device that was given access to the first one's memory and is reset
 * while such memory has been freed and its kernel may still be running; and
 * with the first device reset at such a time.
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

/* Frees memory of device 0 while a kernel of device 1 writes to it. */
static void free_under_a_peer(size_t size) {
    gpu_stream stream;
    void *block;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, size));
    GPU(gpu_set_device(1));
    GPU(gpu_enable_peer(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_fill(stream, block, 7, size / 4, 5000000));
    GPU(gpu_set_device(0));
    GPU(gpu_free(block));
}

/* The free has waited for the kernel, which must not find the memory gone. */
static void reset_under_a_peer(void) {
    free_under_a_peer(1 << 20);
    GPU(gpu_reset());
    GPU(gpu_set_device(1));
    GPU(gpu_sync());
    GPU(gpu_reset());
    printf("reset under a peer\n");
}

static void reset_a_peer(uint32_t round) {
    const size_t size = 1 << 20;
    void *block;
    uint32_t word = round;
    free_under_a_peer(size);
    GPU(gpu_set_device(1));
    GPU(gpu_reset());
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, size));
    GPU(gpu_copy_in(block, &word, sizeof word));
    GPU(gpu_sync());
    word = 0;
    GPU(gpu_copy_out(&word, block, sizeof word));
    printf("with a peer, round %u: %u\n", round, word);
    GPU(gpu_free(block));
    printf("device 0: %d right\n", use(round * 1000));
}

int main(void) {
    int devices;
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
    GPU(gpu_free(block));
    GPU(gpu_count(&devices));
    for (uint32_t round = 1; round <= 3 && devices > 1; round++)
        reset_a_peer(round);
    if (devices > 1)
        reset_under_a_peer();
    return 0;
}
