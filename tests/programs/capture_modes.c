/*
 * Allocates and frees while a stream captures a graph, in each mode of
 * capture, wherever CUDA allows it: on the capturing thread where that or the
 * capture is relaxed, on another thread where the capture is the first
 * thread's own or that thread is relaxed. Each capture must end whole and the
 * graph do what was captured; blocks freed before, during and after it hold
 * what they should.
 */
#include "gpu.h"

#include "find.h"

#include <pthread.h>

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2, WORDS = 1024, BLOCKS = 24 };

static int (*exchange_mode)(int *);
static size_t quarter;

static void set_mode(int mode) {
    if (exchange_mode(&mode))
        exit(1);
}

/* Small ones kept over each other's frees, and more than the device has. */
static void *use_memory(void *argument) {
    int *wrong = argument;
    void *blocks[BLOCKS], *large;
    for (int i = 0; i < BLOCKS; i++)
        *wrong += gpu_malloc(&blocks[i], (size_t)700 << (i % 12)) != 0;
    for (int i = 0; i < BLOCKS; i += 2)
        *wrong += gpu_free(blocks[i]) != 0;
    for (int i = 0; i < BLOCKS; i += 2)
        *wrong += gpu_malloc(&blocks[i], (size_t)900 << (i % 12)) != 0;
    for (int i = 0; i < BLOCKS; i++)
        *wrong += gpu_free(blocks[i]) != 0;
    for (int i = 0; i < 12; i++) {
        int code = gpu_malloc(&large, quarter);
        *wrong += code != 0;
        if (!code)
            *wrong += gpu_free(large) != 0;
    }
    return NULL;
}

struct other {
    int mode, wrong; /* mode -1: as it is */
};

static void *on_another(void *argument) {
    struct other *other = argument;
    if (gpu_set_device(0))
        exit(1);
    if (other->mode >= 0)
        set_mode(other->mode);
    return use_memory(&other->wrong);
}

static void in_thread(struct other *other) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, on_another, other) ||
        pthread_join(thread, NULL))
        exit(1);
}

static int right_words(const void *block, uint32_t value) {
    uint32_t host[WORDS];
    int right = 0;
    GPU(gpu_copy_out(host, block, sizeof host));
    for (int i = 0; i < WORDS; i++)
        right += host[i] == value;
    return right;
}

static void capture(const char *what, int mode, int own, struct other *other) {
    static uint32_t value;
    gpu_stream stream;
    gpu_graph graph = NULL;
    void *buffer, *executable, *freed;
    int wrong = 0;
    uint32_t first = ++value;
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&buffer, WORDS * sizeof(uint32_t)));
    GPU(gpu_malloc(&freed, 1 << 20));
    GPU(gpu_fill(stream, buffer, 0, WORDS, 1000));
    /* Freed under a kernel, so that it waits when the capture begins. */
    GPU(gpu_fill(stream, freed, 1, 1 << 18, 3000000));
    GPU(gpu_free(freed));
    GPU(gpu_capture_begin(stream, mode));
    GPU(gpu_fill(stream, buffer, first, WORDS / 2, 1000));
    if (own >= 0) {
        set_mode(own);
        use_memory(&wrong);
        set_mode(GLOBAL);
    }
    if (other)
        in_thread(other);
    GPU(gpu_fill(stream, (char *)buffer + WORDS * 2, first, WORDS / 2, 1000));
    int code = gpu_capture_end(stream, &graph);
    printf("%s: wrong %d, other's %d, end %d", what, wrong,
           other ? other->wrong : 0, code);
    if (!code) {
        GPU(gpu_graph_prepare(&executable, graph));
        GPU(gpu_graph_launch(executable, stream));
        GPU(gpu_stream_sync(stream));
        printf(", %d right", right_words(buffer, first));
        GPU(gpu_graph_destroy(executable));
    }
    printf("\n");
    use_memory(&wrong);
    printf("  and afterwards: wrong %d\n", wrong);
    GPU(gpu_free(buffer));
    GPU(gpu_stream_destroy(stream));
}

int main(void) {
    gpu_stream stream;
    void *block;
    size_t total;
    GPU(gpu_set_device(0));
    *(void **)&exchange_mode = find("cuThreadExchangeStreamCaptureMode");
    GPU(gpu_mem_info(NULL, &total));
    quarter = total / 4;
    /* Loads the kernels, which a capture would forbid. */
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&block, 4096));
    GPU(gpu_fill(stream, block, 1, 1024, 1000));
    GPU(gpu_stream_sync(stream));
    GPU(gpu_free(block));
    GPU(gpu_stream_destroy(stream));

    struct other plain = {.mode = -1}, relaxed = {.mode = RELAXED};
    capture("relaxed", RELAXED, GLOBAL, NULL);
    capture("relaxed, another thread", RELAXED, -1, &plain);
    capture("thread-local, this thread relaxed", THREAD_LOCAL, RELAXED, NULL);
    capture("thread-local, another thread", THREAD_LOCAL, -1, &plain);
    capture("global, this thread relaxed", GLOBAL, RELAXED, NULL);
    capture("global, another thread relaxed", GLOBAL, -1, &relaxed);
    capture("global, both", GLOBAL, RELAXED, &relaxed);
    return 0;
}
