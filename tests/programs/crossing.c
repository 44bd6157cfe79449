/*
 * One thread allocates and frees so that every free is a batch of its own,
 * while another makes and destroys streams, or contexts on device 1: whatever
 * is marked on all streams and contexts meets some that are just going. Or it
 * captures, or allocates itself.
 *
 *   crossing streams|contexts|captures|requests ROUNDS [ranked]
 *
 * `ranked`: both on one processor, where the one that frees runs only while
 * the other one sleeps (SCHED_FIFO). Where the system does not permit that,
 * the program says so.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include "find.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int done;
static int rounds, ranked;

static int take_rank(int rank) {
    struct sched_param how = {.sched_priority = rank};
    return pthread_setschedparam(pthread_self(), SCHED_FIFO, &how);
}

/* Between two rounds the other thread has the processor for a while. */
static void next_round(void) {
    if (ranked)
        usleep(3000);
}

static void *free_batches(void *nothing) {
    if (ranked)
        take_rank(1);
    GPU(gpu_set_device(0));
    while (!done) {
        void *block;
        GPU(gpu_malloc(&block, (size_t)65 << 20));
        GPU(gpu_free(block));
    }
    return nothing;
}

static void streams(void) {
    void *block;
    GPU(gpu_malloc(&block, 4096));
    for (int i = 0; i < rounds; i++) {
        gpu_stream one, two;
        GPU(gpu_stream_create(&one));
        GPU(gpu_stream_create_blocking(&two));
        GPU(gpu_fill(one, block, 1, 512, 1000));
        GPU(gpu_stream_destroy(one));
        GPU(gpu_stream_destroy(two));
        next_round();
    }
    GPU(gpu_sync());
    GPU(gpu_free(block));
}

static void contexts(void) {
    int (*create)(void **, unsigned, int);
    int (*destroy)(void *);
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    for (int i = 0; i < rounds; i++) {
        void *context, *block;
        GPU(create(&context, 0, 1));
        GPU(gpu_malloc(&block, 4096));
        GPU(gpu_free(block));
        GPU(destroy(context));
        /* The next one may get the same handle. */
        usleep(2000);
    }
}

static void captures(void) {
    gpu_stream stream;
    gpu_graph graph;
    GPU(gpu_stream_create(&stream));
    for (int i = 0; i < rounds; i++) {
        GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
        GPU(gpu_capture_end(stream, &graph));
        next_round();
    }
    GPU(gpu_stream_destroy(stream));
}

static void requests(void) {
    for (int i = 0; i < rounds; i++) {
        void *block;
        GPU(gpu_malloc(&block, (size_t)65 << 20));
        GPU(gpu_free(block));
        next_round();
    }
}

/* Whether the system permits it. */
static int rank_threads(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) || take_rank(2))
        return 0;
    /* Who waits in vain ends by the signal. */
    alarm(30);
    return 1;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"streams", streams}, {"contexts", contexts},
               {"captures", captures}, {"requests", requests}};
    void (*run)(void) = NULL;
    pthread_t thread;
    for (size_t i = 0; argc > 2 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(argv[1], all[i].name))
            run = all[i].run;
    rounds = run ? atoi(argv[2]) : 0;
    ranked = argc > 3 && !strcmp(argv[3], "ranked");
    if (rounds < 1) {
        fprintf(stderr, "usage: crossing streams|contexts|captures|requests ROUNDS [ranked]\n");
        return 2;
    }
    GPU(gpu_set_device(0));
    if (ranked && !rank_threads()) {
        puts("no priorities are permitted here");
        return 0;
    }
    if (pthread_create(&thread, NULL, free_batches, NULL))
        return 1;
    run();
    done = 1;
    pthread_join(thread, NULL);
    puts("done");
    return 0;
}
