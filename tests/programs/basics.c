/*
 * What every program does with device memory: allocates many sizes, writes,
 * copies, reads back, frees; on two devices and from several threads; and the
 * corners: nothing, and too much. What it prints is the same
 * whatever is below, byte for byte.
 */
#include "gpu.h"

#include <pthread.h>

static const size_t sizes[] = {
    1,       2,       255,         256,         257,        511,
    512,     513,     4095,        4096,        65536,      (1 << 20) - 1,
    1 << 20, (1 << 20) + 1,        2 << 20,     3145735,    10 << 20,
    20 << 20, 64 << 20, 200u << 20,
};

enum { SIZES = sizeof sizes / sizeof *sizes, PROBE = 64 };

/* Byte `at` of the pattern of block `seed`. */
static unsigned char pattern(uint32_t seed, size_t at) {
    uint64_t mixed = (seed * 0x9E3779B97F4A7C15u) ^ (at * 0xC2B2AE3D27D4EB4Fu);
    return (unsigned char)(mixed >> 56);
}

/* Where the probes of a block begin: its start, its middle, its end. */
static size_t probe_at(size_t size, int probe, size_t length) {
    return probe == 0 ? 0 : probe == 1 ? (size - length) / 2 : size - length;
}

static void write_probes(void *block, size_t size, uint32_t seed) {
    unsigned char host[PROBE];
    size_t length = size < PROBE ? size : PROBE;
    for (int probe = 0; probe < 3; probe++) {
        size_t at = probe_at(size, probe, length);
        for (size_t i = 0; i < length; i++)
            host[i] = pattern(seed, at + i);
        GPU(gpu_copy_in((char *)block + at, host, length));
    }
}

static int probes_hold(const void *block, size_t size, uint32_t seed) {
    unsigned char host[PROBE];
    size_t length = size < PROBE ? size : PROBE;
    for (int probe = 0; probe < 3; probe++) {
        size_t at = probe_at(size, probe, length);
        GPU(gpu_copy_out(host, (const char *)block + at, length));
        for (size_t i = 0; i < length; i++)
            if (host[i] != pattern(seed, at + i))
                return 0;
    }
    return 1;
}

static int any_overlap(void *const blocks[]) {
    for (int a = 0; a < SIZES; a++)
        for (int b = 0; b < a; b++) {
            uintptr_t low = (uintptr_t)blocks[a], high = (uintptr_t)blocks[b];
            if (low < high + sizes[b] && high < low + sizes[a])
                return 1;
        }
    return 0;
}

static int count_holding(void *const blocks[]) {
    int holding = 0;
    for (int i = 0; i < SIZES; i++)
        holding += probes_hold(blocks[i], sizes[i], (uint32_t)i);
    return holding;
}

static void check_sizes(void) {
    void *blocks[SIZES];
    int aligned = 0;
    for (int i = 0; i < SIZES; i++) {
        GPU(gpu_malloc(&blocks[i], sizes[i]));
        aligned += (uintptr_t)blocks[i] % 256 == 0;
        write_probes(blocks[i], sizes[i], (uint32_t)i);
    }
    printf("  %d sizes: %d aligned, overlap %d, %d hold\n", SIZES, aligned,
           any_overlap(blocks), count_holding(blocks));
    for (int i = 0; i < SIZES; i += 2)
        GPU(gpu_free(blocks[i]));
    for (int i = 0; i < SIZES; i += 2) {
        GPU(gpu_malloc(&blocks[i], sizes[i]));
        write_probes(blocks[i], sizes[i], (uint32_t)i);
    }
    printf("  every other again: overlap %d, %d hold\n", any_overlap(blocks),
           count_holding(blocks));
    for (int i = SIZES; i-- > 0;)
        GPU(gpu_free(blocks[i]));
}

static void check_fill_and_copy(void) {
    enum { SIZE = 3 << 20 };
    void *from, *to;
    unsigned char *host = malloc(SIZE);
    size_t sum = 0;
    if (!host)
        exit(1);
    GPU(gpu_malloc(&from, SIZE));
    GPU(gpu_malloc(&to, SIZE));
    GPU(gpu_set(from, 3, SIZE));
    GPU(gpu_set((char *)from + SIZE / 3, 5, SIZE / 3));
    GPU(gpu_copy(to, from, SIZE));
    GPU(gpu_copy_out(host, to, SIZE));
    for (size_t i = 0; i < SIZE; i++)
        sum += host[i];
    printf("  fill and copy: sum %zu\n", sum);
    GPU(gpu_free(from));
    GPU(gpu_free(to));
    free(host);
}

static void check_kernel(void) {
    enum { WORDS = 1000 };
    uint32_t host[WORDS];
    gpu_stream stream;
    void *block;
    int right = 0;
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&block, sizeof host));
    GPU(gpu_set(block, 0, sizeof host));
    GPU(gpu_sync());
    GPU(gpu_fill(stream, block, 77, WORDS - 1, 1000));
    GPU(gpu_spin(stream, 1000));
    GPU(gpu_stream_sync(stream));
    GPU(gpu_copy_out(host, block, sizeof host));
    for (int i = 0; i < WORDS; i++)
        right += host[i] == (i < WORDS - 1 ? 77 : 0);
    printf("  kernel: %d of %d words right\n", right, WORDS);
    GPU(gpu_free(block));
    GPU(gpu_stream_destroy(stream));
}

static void check_memory_info(void) {
    const size_t size = (size_t)512 << 20, slack = (size_t)64 << 20;
    size_t before, during, after, total, again;
    void *block;
    GPU(gpu_mem_info(&before, &total));
    GPU(gpu_malloc(&block, size));
    GPU(gpu_mem_info(&during, NULL));
    GPU(gpu_free(block));
    GPU(gpu_sync());
    GPU(gpu_mem_info(&after, NULL));
    GPU(gpu_mem_info(NULL, &again));
    printf("  memory: total %zu MiB, same again %d, free within it %d, fell "
           "%d, came back %d\n",
           total >> 20, total == again, before <= total,
           during + size <= before, after + slack >= before);
}

/* Each line: what was answered, and the last error after it. */
static void check_corners(void) {
    void *block = (void *)&block;
    int code = gpu_malloc(&block, 0);
    printf("  nothing: %d, NULL %d, last error %d\n", code, block == NULL,
           gpu_last_error());
    code = gpu_free(NULL);
    printf("  free of NULL: %d, last error %d\n", code, gpu_last_error());
    code = gpu_malloc(&block, (size_t)1 << 50);
    printf("  too much: %d, last error %d", code, gpu_last_error());
    printf(" then %d\n", gpu_last_error());
    code = gpu_malloc(&block, SIZE_MAX);
    printf("  far too much: %d, last error %d\n", code, gpu_last_error());
}

static void check_pinned(void) {
    enum { SIZE = 1 << 20 };
    unsigned char *host, *back;
    void *block;
    GPU(gpu_malloc_host((void **)&host, SIZE));
    GPU(gpu_malloc_host((void **)&back, SIZE));
    GPU(gpu_malloc(&block, SIZE));
    for (size_t i = 0; i < SIZE; i++)
        host[i] = pattern(9, i);
    memset(back, 0, SIZE);
    GPU(gpu_copy_in(block, host, SIZE));
    GPU(gpu_copy_out(back, block, SIZE));
    printf("  pinned: same %d\n", memcmp(host, back, SIZE) == 0);
    GPU(gpu_free(block));
    GPU(gpu_free_host(host));
    GPU(gpu_free_host(back));
}

struct worker {
    pthread_t thread;
    uint32_t seed;
    int device, held, lost;
    size_t bytes;
};

/* Keeps a few blocks, replaces one at random, checks it before it goes. */
static void *work(void *argument) {
    enum { KEPT = 24, ROUNDS = 400 };
    struct worker *worker = argument;
    void *blocks[KEPT] = {0};
    size_t lengths[KEPT];
    uint64_t random = worker->seed;
    GPU(gpu_set_device(worker->device));
    for (int round = 0; round < ROUNDS + KEPT; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int slot = round < ROUNDS ? (int)(random >> 33) % KEPT : round - ROUNDS;
        uint32_t seed = worker->seed * 1000 + (uint32_t)slot;
        if (blocks[slot]) {
            int holds = probes_hold(blocks[slot], lengths[slot], seed);
            worker->held += holds;
            worker->lost += !holds;
            GPU(gpu_free(blocks[slot]));
            blocks[slot] = NULL;
        }
        if (round >= ROUNDS)
            continue;
        lengths[slot] = (size_t)1 + ((random >> 20) & 0xfffff) %
                                        ((size_t)1 << (4 + (random >> 60)));
        GPU(gpu_malloc(&blocks[slot], lengths[slot]));
        write_probes(blocks[slot], lengths[slot], seed);
        worker->bytes += lengths[slot];
    }
    return NULL;
}

static void check_threads(int devices) {
    enum { WORKERS = 4 };
    struct worker workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.seed = (uint32_t)i + 1,
                                     .device = i % devices};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            exit(1);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        printf("thread %d: %zu bytes, %d held, %d lost\n", i, workers[i].bytes,
               workers[i].held, workers[i].lost);
    }
}

/* Memory of one device is freed while another is current. */
static void check_across(void) {
    void *block;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, 1 << 20));
    GPU(gpu_set_device(1));
    GPU(gpu_free(block));
    printf("freed from another device\n");
}

int main(void) {
    int devices = 0;
    GPU(gpu_count(&devices));
    if (devices > 2)
        devices = 2;
    for (int device = 0; device < devices; device++) {
        printf("device %d over the %s\n", device, GPU_KIND);
        GPU(gpu_set_device(device));
        check_memory_info();
        check_sizes();
        check_fill_and_copy();
        check_kernel();
        check_corners();
        check_pinned();
    }
    if (devices > 1)
        check_across();
    check_threads(devices);
    return 0;
}
