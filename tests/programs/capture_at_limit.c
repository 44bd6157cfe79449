/*
 * A program at its limit while a stream captures a graph, beside another context of the
 * device. What the limit has is enough, and no more is taken.
 *
 *   capture_at_limit works    the other context has no memory, and works all the time
 *   capture_at_limit ends     it has memory, and ends
 *   capture_at_limit made     threads make others without memory, which work, and end them
 *
 * Exit: 0 right, 1 something failed.
 */
#include "beside.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 1024, ROUNDS = 4, MANY = 100, BEFORE = 30, THREADS = 2 };

static const size_t size = 1 << 20;
static const uint64_t kernel_ns = 1000 * 1000;
static void *blocks[MOST];

/* Takes blocks until no more are to be had, or so many. */
static int fill_up(int most) {
    int count = 0;
    while (count < most && !gpu_malloc(&blocks[count], size))
        count++;
    gpu_last_error();
    return count;
}

static int (*make)(void **, unsigned, int), (*destroy)(void *);
static atomic_int is_over;

static void *make_others(void *unused) {
    while (!is_over) {
        gpu_stream stream;
        void *context;
        GPU(make(&context, 0, 0));
        GPU(gpu_stream_create(&stream));
        GPU(gpu_spin(stream, kernel_ns));
        GPU(destroy(context));
    }
    return unused;
}

int main(int argc, char **argv) {
    int (*set)(void *);
    pthread_t threads[THREADS];
    gpu_stream captured, work, other_work;
    gpu_graph graph;
    void *other, *own;
    int (*current)(void **);
    const int ends = argc == 2 && !strcmp(argv[1], "ends");
    const int made = argc == 2 && !strcmp(argv[1], "made");
    if (argc != 2 || (!ends && !made && strcmp(argv[1], "works"))) {
        fprintf(stderr, "usage: capture_at_limit works | ends | made\n");
        return 2;
    }
    *(void **)&make = find("cuCtxCreate_v2");
    *(void **)&set = find("cuCtxSetCurrent");
    *(void **)&current = find("cuCtxGetCurrent");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    other = make_context_beside();
    GPU(current(&own));
    GPU(gpu_stream_create(&captured));
    GPU(gpu_stream_create(&work));
    GPU(set(other));
    GPU(gpu_stream_create(&other_work));
    if (ends)
        fill_up(BEFORE);
    GPU(set(own));
    if (!ends)
        fill_up(MOST);
    GPU(gpu_capture_begin(captured, GPU_CAPTURE_RELAXED));
    if (ends) {
        GPU(destroy(other));
        GPU(set(own));
        fill_up(MOST);
    }
    for (int i = 0; made && i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, make_others, NULL))
            return 1;
    for (int round = 0; !ends && round < (made ? MANY : ROUNDS); round++) {
        GPU(set(other));
        GPU(gpu_spin(other_work, kernel_ns));
        GPU(set(own));
        GPU(gpu_spin(work, kernel_ns));
        GPU(gpu_free(blocks[0]));
        GPU(gpu_malloc(&blocks[0], size));
    }
    is_over = 1;
    for (int i = 0; made && i < THREADS; i++)
        pthread_join(threads[i], NULL);
    GPU(gpu_capture_end(captured, &graph));
    return 0;
}
