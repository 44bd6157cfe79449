/*
 * Threads make contexts, capture in each and end it again, all the time: what one thread
 * ends under a handle is nothing of the context that another is given under it.
 *
 * Exit: 0 right, 1 something failed, 3 a capture was invalidated.
 */
#include "gpu.h"

#include "find.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 3, ROUNDS = 1000, BLOCKS = 80, SIZE = 4096, RELAXED = 2, NON_BLOCKING = 1 };

static int (*create)(void **, unsigned, int), (*destroy)(void *);
static int (*make_stream)(void **, unsigned), (*begin)(void *, int), (*end)(void *, void **);
static int (*allocate)(unsigned long long *, size_t), (*give_back)(unsigned long long);
static atomic_int invalid;

static void *churn(void *unused) {
    for (int round = 0; round < ROUNDS; round++) {
        void *context, *stream, *graph = NULL;
        unsigned long long blocks[BLOCKS];
        GPU(create(&context, 0, 0));
        GPU(make_stream(&stream, NON_BLOCKING));
        GPU(begin(stream, RELAXED));
        for (int i = 0; i < BLOCKS; i++)
            GPU(allocate(&blocks[i], SIZE));
        for (int i = 0; i < BLOCKS; i++)
            GPU(give_back(blocks[i]));
        invalid += end(stream, &graph) != 0;
        GPU(destroy(context));
    }
    return unused;
}

int main(void) {
    pthread_t threads[THREADS];
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    *(void **)&make_stream = find("cuStreamCreate");
    *(void **)&begin = find("cuStreamBeginCapture_v2");
    *(void **)&end = find("cuStreamEndCapture");
    *(void **)&allocate = find("cuMemAlloc_v2");
    *(void **)&give_back = find("cuMemFree_v2");
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, churn, NULL))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("invalid: %d\n", invalid);
    return invalid ? 3 : 0;
}
