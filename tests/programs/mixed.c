/*
 * A bit of everything, on a small device, and never put off by an error: each
 * call's code is printed and the next thing is done. What cannot be the same
 * under a pool (how much fits, how long it takes) is not printed.
 *
 * At the end everything is freed that can be, device 1 is reset, and the last
 * line counts: blocks got, frees that were accepted.
 */
#include "gpu.h"

enum { SMALL = 12, LARGE = 64, WORDS = 1024 };

static long allocated, freed, pinned, unpinned;

#define SAY(call) printf("%s: %d\n", #call, call)

static void *take(size_t size) {
    void *block = NULL;
    int code = gpu_malloc(&block, size);
    if (code)
        printf("allocate %zu: %d, last error %d\n", size, code,
               gpu_last_error());
    allocated += !code;
    return code ? NULL : block;
}

static void give(void *block) {
    if (!block)
        return;
    int code = gpu_free(block);
    if (code)
        printf("free: %d, last error %d\n", code, gpu_last_error());
    freed += !code;
}

static void *take_host(size_t size, unsigned flags) {
    void *host = NULL;
    int code = gpu_host_alloc(&host, size, flags);
    if (code)
        printf("allocate %zu of the host: %d, last error %d\n", size, code,
               gpu_last_error());
    pinned += !code;
    return code ? NULL : host;
}

static void give_host(void *host) {
    if (!host)
        return;
    int code = gpu_free_host(host);
    if (code)
        printf("free of the host: %d, last error %d\n", code,
               gpu_last_error());
    unpinned += !code;
}

static void check_words(const char *what, const void *block, uint32_t value) {
    static uint32_t host[WORDS];
    memset(host, 0, sizeof host);
    int right = 0, code = gpu_copy_out(host, block, sizeof host);
    for (int i = 0; i < WORDS; i++)
        right += host[i] == value;
    printf("%s: %d, %d right\n", what, code, right);
}

/* All sizes, freed under kernels and allocated again. */
static void daily_work(gpu_stream stream) {
    void *blocks[SMALL];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < SMALL; i++) {
            size_t size = (size_t)(3 + round) << 2 * (i % 9);
            blocks[i] = take(size);
            if (blocks[i])
                SAY(gpu_fill(i % 2 ? stream : NULL, blocks[i], 7, size / 4,
                             100000));
        }
        for (int i = 0; i < SMALL; i++)
            give(blocks[i]);
    }
    SAY(gpu_stream_sync(stream));
    SAY(gpu_sync());
}

static void contents(gpu_stream stream) {
    void *one = take(WORDS * 4), *two = take(WORDS * 4);
    gpu_event event = NULL;
    if (one && two) {
        SAY(gpu_event_create(&event));
        SAY(gpu_fill(stream, one, 42, WORDS, 100000));
        SAY(gpu_event_record(event, stream));
        SAY(gpu_stream_wait(NULL, event));
        SAY(gpu_copy(two, one, WORDS * 4));
        check_words("copied", two, 42);
        SAY(gpu_set_async(one, 0, WORDS * 4, stream));
        SAY(gpu_copy_async(two, one, WORDS * 4, stream));
        SAY(gpu_stream_sync(stream));
        check_words("cleared", two, 0);
        SAY(gpu_event_sync(event));
        SAY(gpu_event_destroy(event));
    }
    give(one);
    give(two);
}

/* Page-locked memory of all sizes, freed under copies and taken again. */
static void host_memory(gpu_stream stream) {
    void *blocks[SMALL], *device = take(WORDS * 4);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < SMALL; i++) {
            blocks[i] = take_host((size_t)1000 << i, (unsigned)(i % 3));
            if (blocks[i])
                memset(blocks[i], round, (size_t)1000 << i);
        }
        for (int i = 2; i < SMALL && device; i++)
            if (blocks[i])
                SAY(gpu_copy_unified(device, blocks[i], WORDS * 4, stream));
        for (int i = 0; i < SMALL; i++)
            give_host(blocks[i]);
    }
    SAY(gpu_stream_sync(stream));
    if (device)
        check_words("from the host", device, 0x01010101);
    give(device);
}

/* Takes all there is, twice: what was given back can be had again. */
static void run_out(void) {
    void *blocks[LARGE];
    for (int round = 0; round < 2; round++) {
        int count = 0, code = 0;
        while (count < LARGE && !code) {
            code = gpu_malloc(&blocks[count], (size_t)(8 - round) << 20);
            count += !code;
        }
        allocated += count;
        printf("taken all there is: %d, last error %d\n", code,
               gpu_last_error());
        for (int i = 0; i < count; i++)
            give(blocks[i]);
    }
}

static void ask(void) {
    size_t available = 0, total = 0;
    int code = gpu_mem_info(&available, &total);
    printf("memory: %d, %d\n", code, available <= total);
    SAY(gpu_mem_info(NULL, &total));
    SAY(gpu_mem_info(&available, NULL));
}

/* Allocates and frees while a stream captures, in the mode that allows it. */
static void capture(gpu_stream stream) {
    gpu_graph graph = NULL;
    void *executable = NULL, *block = take(WORDS * 4);
    if (!block)
        return;
    SAY(gpu_fill(stream, block, 1, WORDS, 1000));
    int began = gpu_capture_begin(stream, GPU_CAPTURE_RELAXED);
    printf("capture: %d\n", began);
    SAY(gpu_fill(stream, block, 2, WORDS, 1000));
    for (int i = 0; i < 8; i++)
        give(take((size_t)10 << 20));
    for (int i = 0; i < 8; i++)
        give_host(take_host((size_t)3 << 20, 0));
    int code = gpu_capture_end(stream, &graph);
    printf("captured: %d\n", code);
    if (!code && !began)
        code = gpu_graph_prepare(&executable, graph);
    if (!code && executable) {
        SAY(gpu_graph_launch(executable, stream));
        SAY(gpu_graph_destroy(executable));
    }
    SAY(gpu_stream_sync(stream));
    check_words("after the graph", block, 2);
    give(block);
}

static void other_memory(gpu_stream stream) {
    void *pitched = NULL, *ordered = NULL;
    size_t pitch = 0;
    int code = gpu_malloc_pitch(&pitched, &pitch, 1000, 300);
    printf("pitched: %d, %zu\n", code, pitch);
    allocated += !code;
    if (!code)
        give(pitched);
    code = gpu_malloc_async(&ordered, 1 << 20, stream);
    printf("in order: %d\n", code);
    if (!code)
        SAY(gpu_free_async(ordered, stream));
    SAY(gpu_free(NULL));
    SAY(gpu_free((void *)(uintptr_t)4096));
    gpu_last_error();
}

static void two_devices(void) {
    gpu_stream stream = NULL;
    void *block = NULL;
    if (gpu_set_device(0) == 0)
        block = take(WORDS * 4);
    SAY(gpu_set_device(1));
    SAY(gpu_enable_peer(0));
    int made = gpu_stream_create_blocking(&stream);
    printf("stream: %d\n", made);
    void *own = take(3 << 20);
    if (block)
        SAY(gpu_fill(stream, block, 9, WORDS, 2000000));
    give(own);
    give(block);
    own = take(3 << 20);
    if (own)
        SAY(gpu_set(own, 1, 3 << 20));
    give(own);
    host_memory(stream);
    if (!made)
        SAY(gpu_stream_destroy(stream));
    SAY(gpu_sync());
    SAY(gpu_reset());
}

int main(void) {
    gpu_stream stream = NULL;
    size_t total = 0;
    SAY(gpu_set_device(0));
    SAY(gpu_stream_create(&stream));
    daily_work(stream);
    contents(stream);
    host_memory(stream);
    run_out();
    ask();
    capture(stream);
    other_memory(stream);
    two_devices();
    SAY(gpu_set_device(0));
    daily_work(stream);
    if (stream)
        SAY(gpu_stream_destroy(stream));
    if (gpu_mem_info(NULL, &total) == 0) {
        void *most = take(total / 4 * 3);
        printf("most of it can be had again: %d\n", most != NULL);
        give(most);
    }
    printf("pinned %ld, unpinned %ld\n", pinned, unpinned);
    printf("allocated %ld, freed %ld\n", allocated, freed);
    return 0;
}
