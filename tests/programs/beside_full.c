/*
 * Two contexts of a full device.
 *
 *   beside_full to_and_fro     what one frees the other takes, and back
 *   beside_full large          small blocks are freed, and a large one is taken in a capture
 *   beside_full ends|free|pool a free in a capture waits for work of its context that goes on
 *                              until another thread has ended the other context, has freed
 *                              a block there, or has used a pool of CUDA's there
 *
 * Prints what was refused, and how often the other thread was held up.
 * Exit: 0 right, 1 something failed.
 */
#include "beside.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096, POOL_CALLS = 20, PATIENCE_MS = 5000, HELD_UP_MS = 400 };

static const size_t page = 2 << 20;
static int (*set)(void *), (*current)(void **), (*destroy)(void *);
static void *own, *other;
static int refused;

static void *taken(size_t size) {
    void *block = NULL;
    refused += gpu_malloc(&block, size) != 0;
    gpu_last_error();
    return block;
}

static void fill_up(void) {
    void *block;
    while (!gpu_malloc(&block, page))
        ;
    gpu_last_error();
}

static void to_and_fro(void) {
    void *kept[2], *block, *third = make_context_beside();
    GPU(set(third));
    GPU(gpu_malloc(&block, 4096));
    GPU(gpu_malloc(&kept[0], page));
    GPU(gpu_malloc(&kept[1], page));
    fill_up();
    GPU(gpu_free(kept[0]));
    GPU(gpu_free(kept[1]));
    for (int round = 0; round < 3; round++) {
        GPU(set(own));
        GPU(gpu_free(taken(2 * page)));
        GPU(set(other));
        block = taken(page);
        GPU(set(own));
        GPU(gpu_free(taken(page)));
        GPU(set(other));
        GPU(gpu_free(block));
    }
}

static void large(void) {
    static void *blocks[MOST];
    gpu_stream stream;
    gpu_graph graph;
    void *block;
    int count = 0;
    GPU(set(other));
    GPU(gpu_malloc(&block, 4096));
    GPU(set(own));
    GPU(gpu_stream_create(&stream));
    while (count < MOST && !gpu_malloc(&blocks[count], 100 << 10))
        count++;
    gpu_last_error();
    while (count > 0)
        GPU(gpu_free(blocks[--count]));
    GPU(gpu_sync());
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(gpu_free(taken(20 << 20)));
    GPU(gpu_capture_end(stream, &graph));
}

static const char *what;
static void *block_there;
static gpu_stream stream_there;
static _Thread_local int frees;
static atomic_int is_waiting, is_done, held_up;

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Work of the context: the driver's free waits for it. */
static void work(const char *name) {
    const int64_t began = now_ms();
    void *context;
    if (!frees || strcmp(name, "cuMemFree_v2") || current(&context) || context != own)
        return;
    is_waiting = 1;
    while (!is_done && now_ms() < began + PATIENCE_MS)
        usleep(1000);
    held_up += !is_done;
}

static void *use_other(void *unused) {
    int64_t began;
    while (!is_waiting)
        usleep(1000);
    GPU(set(other));
    began = now_ms();
    if (!strcmp(what, "ends"))
        GPU(destroy(other));
    if (!strcmp(what, "free"))
        GPU(gpu_free(block_there));
    for (int i = 0; !strcmp(what, "pool") && i < POOL_CALLS; i++) {
        void *block;
        GPU(gpu_malloc_async(&block, 4096, stream_there));
        GPU(gpu_free_async(block, stream_there));
    }
    held_up += now_ms() > began + HELD_UP_MS;
    is_done = 1;
    return unused;
}

static void wait_beside(void) {
    void (*watch)(void (*)(const char *));
    gpu_stream stream;
    gpu_graph graph;
    pthread_t thread;
    void *block, *last = NULL;
    *(void **)&watch = find("sim_cuda_watch");
    GPU(gpu_stream_create(&stream));
    GPU(set(other));
    GPU(gpu_malloc(&block_there, 4096));
    GPU(gpu_stream_create(&stream_there));
    if (!strcmp(what, "pool")) {
        GPU(gpu_malloc_async(&block, 4096, stream_there));
        GPU(gpu_stream_sync(stream_there));
    }
    while (!gpu_malloc(&block, page))
        last = block;
    gpu_last_error();
    GPU(gpu_free(last));
    GPU(set(own));
    block = taken(page);
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    if (pthread_create(&thread, NULL, use_other, NULL))
        exit(1);
    watch(work);
    frees = 1;
    GPU(gpu_free(block));
    taken(page);
    frees = 0;
    watch(NULL);
    is_waiting = 1;
    pthread_join(thread, NULL);
    GPU(gpu_capture_end(stream, &graph));
}

int main(int argc, char **argv) {
    what = argc == 2 ? argv[1] : "";
    *(void **)&set = find("cuCtxSetCurrent");
    *(void **)&current = find("cuCtxGetCurrent");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    other = make_context_beside();
    GPU(current(&own));
    if (!strcmp(what, "to_and_fro"))
        to_and_fro();
    else if (!strcmp(what, "large"))
        large();
    else if (!strcmp(what, "ends") || !strcmp(what, "free") || !strcmp(what, "pool"))
        wait_beside();
    else {
        fprintf(stderr, "usage: beside_full to_and_fro | large | ends | free | pool\n");
        return 2;
    }
    printf("refused: %d, held up: %d\n", refused, held_up);
    return 0;
}
