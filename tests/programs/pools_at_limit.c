/*
 * Pools of CUDA's whose room is not in one piece: each has reserved a piece of
 * 32 MiB, of which 12 in the middle are in use, and all of them are asked for 16
 * MiB at once, each by a thread of its own. Under a limit of just these pieces
 * each would have to grow, although it has the room.
 *
 *   pools_at_limit POOLS
 */
#include "families.h"

#include <pthread.h>
#include <unistd.h>

enum { MOST = 64, MIB = 1 << 20, THRESHOLD = 4 };

static pthread_barrier_t all_ready;

static int take(address *to, size_t size, void *pool, gpu_stream stream) {
    return CALL("cuMemAllocFromPoolAsync", (address *, size_t, void *, void *),
                to, size, pool, stream);
}

static void *use_pool(void *unused) {
    unsigned long long keep = ~0ULL;
    void *pool;
    gpu_stream stream;
    address first, middle, last;
    (void)unused;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(CALL("cuMemPoolCreate", (void **, const void *), &pool, &here));
    GPU(CALL("cuMemPoolSetAttribute", (void *, int, void *), pool, THRESHOLD,
             &keep));
    /* Others may have asked for a piece at the same moment. */
    while (take(&first, 12 * MIB, pool, stream))
        usleep(2000);
    GPU(take(&middle, 12 * MIB, pool, stream));
    GPU(CALL("cuMemFreeAsync", (address, void *), first, stream));
    GPU(gpu_stream_sync(stream));
    pthread_barrier_wait(&all_ready);
    take(&last, 16 * MIB, pool, stream);
    GPU(gpu_stream_sync(stream));
    return NULL;
}

int main(int argc, char **argv) {
    int count = argc == 2 ? atoi(argv[1]) : 0;
    pthread_t threads[MOST];
    if (count < 1 || count > MOST)
        return 2;
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    pthread_barrier_init(&all_ready, NULL, (unsigned)count);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, use_pool, NULL);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
