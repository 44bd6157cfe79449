/*
 * Contexts of a program's own: made, filled, destroyed, made again at perhaps
 * the same address; two at a time; and a primary context released and
 * retained again. Memory belongs to its context and goes with it.
 */
#include "gpu.h"

#include "find.h"

enum { BLOCKS = 6 };

typedef unsigned long long address;

static int (*create)(void **, unsigned, int);
static int (*destroy)(void *);
static int (*set_current)(void *);
static int (*retain)(void **, int);
static int (*release)(int);
static int (*allocate)(address *, size_t);
static int (*free_memory)(address);
static int (*copy_in)(address, const void *, size_t);
static int (*copy_out)(void *, address, size_t);
static int (*memory_info)(size_t *, size_t *);

static void find_all(void) {
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    *(void **)&set_current = find("cuCtxSetCurrent");
    *(void **)&retain = find("cuDevicePrimaryCtxRetain");
    *(void **)&release = find("cuDevicePrimaryCtxRelease_v2");
    *(void **)&allocate = find("cuMemAlloc_v2");
    *(void **)&free_memory = find("cuMemFree_v2");
    *(void **)&copy_in = find("cuMemcpyHtoD_v2");
    *(void **)&copy_out = find("cuMemcpyDtoH_v2");
    *(void **)&memory_info = find("cuMemGetInfo_v2");
}

static size_t size_of(int block) { return (size_t)3000 << (3 * block); }

static void fill(address *blocks, uint32_t seed) {
    for (int i = 0; i < BLOCKS; i++) {
        uint32_t word = seed + (uint32_t)i;
        GPU(allocate(&blocks[i], size_of(i)));
        GPU(copy_in(blocks[i], &word, sizeof word));
    }
}

static int count_right(const address *blocks, uint32_t seed) {
    int right = 0;
    for (int i = 0; i < BLOCKS; i++) {
        uint32_t word = 0;
        GPU(copy_out(&word, blocks[i], sizeof word));
        right += word == seed + (uint32_t)i;
    }
    return right;
}

/* Leaves half of the blocks to the end of their context. */
static void one_after_the_other(void) {
    address blocks[BLOCKS];
    for (uint32_t round = 1; round <= 6; round++) {
        void *context;
        GPU(create(&context, 0, 0));
        fill(blocks, round * 10);
        printf("round %u: %d right\n", round, count_right(blocks, round * 10));
        for (int i = 0; i < BLOCKS; i += 2)
            GPU(free_memory(blocks[i]));
        GPU(destroy(context));
        printf("freed after its context: %d\n", free_memory(blocks[1]));
    }
}

static void two_at_a_time(void) {
    address first[BLOCKS], second[BLOCKS];
    void *one, *two;
    GPU(create(&one, 0, 0));
    fill(first, 100);
    GPU(create(&two, 0, 0));
    fill(second, 200);
    GPU(set_current(one));
    printf("the first: %d right\n", count_right(first, 100));
    /* Freed while the other context is current. */
    for (int i = 0; i < BLOCKS; i += 2)
        GPU(free_memory(second[i]));
    GPU(set_current(two));
    for (int i = 0; i < BLOCKS; i += 2)
        GPU(allocate(&second[i], size_of(i)));
    for (int i = 0; i < BLOCKS; i += 2) {
        uint32_t word = 200 + (uint32_t)i;
        GPU(copy_in(second[i], &word, sizeof word));
    }
    GPU(destroy(one));
    printf("the second without the first: %d right\n",
           count_right(second, 200));
    GPU(destroy(two));
}

/* Device 1, which nothing else here has touched. */
static void a_primary_context_again(void) {
    address blocks[BLOCKS];
    for (uint32_t round = 1; round <= 4; round++) {
        void *context;
        size_t available, total;
        GPU(retain(&context, 1));
        GPU(set_current(context));
        GPU(memory_info(&available, &total));
        fill(blocks, round * 1000);
        printf("primary, round %u: %d right, all free before %d\n", round,
               count_right(blocks, round * 1000),
               available + ((size_t)64 << 20) >= total);
        GPU(release(1));
        GPU(set_current(NULL));
    }
}

int main(void) {
    int devices = 0;
    size_t before, after, total;
    GPU(gpu_count(&devices));
    find_all();
    GPU(gpu_set_device(0));
    GPU(gpu_mem_info(&before, &total));
    one_after_the_other();
    two_at_a_time();
    GPU(gpu_set_device(0));
    GPU(gpu_mem_info(&after, &total));
    printf("all came back: %d\n", after + ((size_t)64 << 20) >= before);
    if (devices > 1)
        a_primary_context_again();
    return 0;
}
