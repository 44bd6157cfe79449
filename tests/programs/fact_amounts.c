/*
 * How the driver counts and lays out memory, and what it answers to requests
 * and frees at the edges.
 */
#include "facts.h"
#include "find.h"

#include <pthread.h>

static const size_t sizes[] = {1,           4096,           512 << 10,
                               1 << 20,     (1 << 20) + 1,  2 << 20,
                               3 << 20,     (2 << 20) + 1,  20 << 20,
                               (20 << 20) + 512};

static size_t available(void) {
    size_t bytes;
    GPU(gpu_mem_info(&bytes, NULL));
    return bytes;
}

/* The largest power of two that divides all. */
static long long common_alignment(void *const blocks[], int count) {
    uintptr_t bits = 0;
    for (int i = 0; i < count; i++)
        bits |= (uintptr_t)blocks[i];
    return (long long)(bits & -bits);
}

static void of_size(size_t size) {
    enum { COUNT = 8 };
    void *blocks[COUNT];
    size_t before = available();
    GPU(gpu_malloc(&blocks[0], size));
    size_t first = available();
    for (int i = 1; i < COUNT; i++)
        GPU(gpu_malloc(&blocks[i], size));
    size_t all = available();
    fact((long long)(before - first), "amount.first.%zu", size);
    fact((long long)(before - all) / COUNT, "amount.each.%zu", size);
    fact(common_alignment(blocks, COUNT), "alignment.%zu", size);
    for (int i = 0; i < COUNT; i++)
        GPU(gpu_free(blocks[i]));
    fact((long long)available() - (long long)before, "amount.back.%zu", size);
}

/* Blocks of 512 bytes until the free amount has fallen three times. */
static void granularity(void) {
    enum { LIMIT = 100000, FALLS = 3 };
    static void *blocks[LIMIT];
    size_t last = available(), step = 0;
    int count = 0, falls = 0, since = 0, between = 0;
    while (count < LIMIT && falls < FALLS) {
        GPU(gpu_malloc(&blocks[count++], 512));
        size_t now = available();
        since++;
        if (now == last)
            continue;
        step = last - now;
        between = since;
        since = 0;
        last = now;
        falls++;
    }
    fact((long long)step, "amount.step");
    fact(between, "amount.blocks_of_512_each_step");
    if (count > 1)
        fact((long long)((uintptr_t)blocks[count - 1] -
                         (uintptr_t)blocks[count - 2]),
             "amount.distance_of_512");
    while (count)
        GPU(gpu_free(blocks[--count]));
}

static void host_alignment(size_t size) {
    void *blocks[4];
    for (int i = 0; i < 4; i++)
        GPU(gpu_malloc_host(&blocks[i], size));
    fact(common_alignment(blocks, 4), "alignment_host.%zu", size);
    for (int i = 0; i < 4; i++)
        GPU(gpu_free_host(blocks[i]));
}

static void edges(void) {
    void *block = &block;
    fact(gpu_malloc(&block, 0), "malloc_of_zero");
    fact(block == NULL, "malloc_of_zero.gives_null");
    gpu_last_error();
    fact(gpu_free(NULL), "free_of_null");
    GPU(gpu_malloc(&block, 1 << 20));
    fact(gpu_free((char *)block + 512), "free_inside");
    gpu_last_error();
    GPU(gpu_free(block));
    fact(gpu_free(block), "free_twice");
    gpu_last_error();
    fact(gpu_malloc(&block, (size_t)1 << 50), "malloc_of_too_much");
    gpu_last_error();
}

/* Does a failure of the driver's own function show in the runtime's last
 * error? The library asks the driver and must leave no trace there. */
static void last_error(void) {
    int (*driver_malloc)(uint64_t *, size_t) =
        (int (*)(uint64_t *, size_t))find("cuMemAlloc_v2");
    uint64_t address;
    gpu_last_error();
    fact(driver_malloc(&address, (size_t)1 << 50), "driver_malloc_of_too_much");
    fact(gpu_last_error(), "last_error_after_it");
}

static void *without_context(void *block) {
    int (*driver_malloc)(uint64_t *, size_t) =
        (int (*)(uint64_t *, size_t))find("cuMemAlloc_v2");
    int (*driver_free)(uint64_t) = (int (*)(uint64_t))find("cuMemFree_v2");
    uint64_t address = 0;
    fact(driver_malloc(&address, 4096), "without_context.malloc");
    int code = driver_free((uint64_t)(uintptr_t)block);
    fact(code, "without_context.free");
    if (!code)
        return NULL;
    int (*free_async)(uint64_t, void *) =
        (int (*)(uint64_t, void *))find("cuMemFreeAsync");
    code = free_async((uint64_t)(uintptr_t)block, NULL);
    fact(code, "without_context.free_async");
    return code ? block : NULL;
}

static void thread_without_context(void) {
    pthread_t thread;
    void *block, *left;
    GPU(gpu_malloc(&block, 4096));
    if (pthread_create(&thread, NULL, without_context, block))
        exit(1);
    pthread_join(thread, &left);
    if (left)
        GPU(gpu_free(left));
}

int main(void) {
    GPU(gpu_set_device(0));
    load_kernels();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        of_size(sizes[i]);
    granularity();
    host_alignment(4096);
    host_alignment(1 << 20);
    host_alignment(8 << 20);
    edges();
    last_error();
    thread_without_context();
    return 0;
}
