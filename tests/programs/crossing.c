/*
 * One thread allocates and frees so that every free is a batch of its own,
 * while another makes and destroys streams, or contexts on device 1: whatever
 * is marked on all streams and contexts meets some that are just going.
 *
 *   crossing streams|contexts ROUNDS
 */
#include "gpu.h"

#include "find.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int done;
static int rounds;

static void *free_batches(void *nothing) {
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

int main(int argc, char **argv) {
    pthread_t thread;
    int with_contexts = argc == 3 && !strcmp(argv[1], "contexts");
    rounds = argc == 3 ? atoi(argv[2]) : 0;
    if (rounds < 1 || (!with_contexts && strcmp(argv[1], "streams"))) {
        fprintf(stderr, "usage: crossing streams|contexts ROUNDS\n");
        return 2;
    }
    GPU(gpu_set_device(0));
    if (pthread_create(&thread, NULL, free_batches, NULL))
        return 1;
    if (with_contexts)
        contexts();
    else
        streams();
    done = 1;
    pthread_join(thread, NULL);
    puts("done");
    return 0;
}
