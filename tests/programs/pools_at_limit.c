/*
 * Pools of CUDA's whose room is not in one piece: each has reserved a piece of
 * 32 MiB, of which 12 in the middle are in use, and all of them are asked for 16
 * MiB at once, each by a thread of its own. Under a limit of just these pieces
 * each would have to grow, although it has the room.
 *
 *   pools_at_limit POOLS
 *   pools_at_limit 1 NS [plain]
 *
 * With NS the stream is busy for so long then, and the pool is asked for 8 and 4 MiB
 * after that, for which there is room in one piece. With "plain", as much as another
 * pool gives back meanwhile (32 MiB) is asked for before, and not from a pool. Prints
 * how many of these were served, and how many milliseconds the last one waited.
 *
 *   pools_at_limit turns
 *
 * One pool is asked on a busy stream and on one with nothing to do in turn. Prints how
 * many MiB it has reserved when all is done.
 */
#include "families.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, MIB = 1 << 20, THRESHOLD = 4 };

static pthread_barrier_t all_ready;
static uint64_t busy_ns;
static int asks_plainly;
static unsigned served;
static uint64_t waited_ms;

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int take(address *to, size_t size, void *pool, gpu_stream stream) {
    return CALL("cuMemAllocFromPoolAsync", (address *, size_t, void *, void *),
                to, size, pool, stream);
}

static gpu_stream other_stream;
static address other;

/* Another pool takes a piece of its own. */
static void take_other(void) {
    void *pool;
    GPU(gpu_stream_create(&other_stream));
    GPU(CALL("cuMemPoolCreate", (void **, const void *), &pool, &here));
    GPU(take(&other, 32 * MIB, pool, other_stream));
}

static void give_other(void) {
    GPU(CALL("cuMemFreeAsync", (address, void *), other, other_stream));
    GPU(gpu_stream_sync(other_stream));
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
    if (busy_ns)
        GPU(gpu_spin(stream, busy_ns));
    int result = take(&last, 16 * MIB, pool, stream);
    if (busy_ns && !result)
        printf("16 MiB were served\n");
    if (asks_plainly) {
        void *plain;
        give_other();
        served += !gpu_malloc(&plain, 32 * MIB);
    }
    for (size_t size = 8 * MIB; busy_ns && size >= 4 * MIB; size /= 2) {
        uint64_t begin = now_ms();
        served += !take(&last, size, pool, stream);
        waited_ms = now_ms() - begin;
    }
    GPU(gpu_stream_sync(stream));
    return NULL;
}

static int take_turns(void) {
    enum { BLOCKS = 10, ROUNDS = 20, RESERVED = 5 };
    gpu_stream busy, idle;
    address blocks[BLOCKS], more;
    unsigned long long reserved = 0;
    void *pool;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&busy));
    GPU(gpu_stream_create(&idle));
    GPU(CALL("cuMemPoolCreate", (void **, const void *), &pool, &here));
    for (int i = 0; i < BLOCKS; i++)
        GPU(take(&blocks[i], 12 * MIB, pool, busy));
    for (int i = 0; i < BLOCKS - 2; i += 2)
        GPU(CALL("cuMemFreeAsync", (address, void *), blocks[i], busy));
    GPU(gpu_stream_sync(busy));
    GPU(gpu_spin(busy, 2000000000));
    for (int i = 0; i < ROUNDS; i++) {
        take(&more, 16 * MIB, pool, busy);
        take(&more, 16 * MIB, pool, idle);
    }
    GPU(gpu_sync());
    GPU(CALL("cuMemPoolTrimTo", (void *, size_t), pool, 0));
    GPU(CALL("cuMemPoolGetAttribute", (void *, int, void *), pool, RESERVED,
             &reserved));
    printf("reserved %llu\n", reserved >> 20);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "turns"))
        return take_turns();
    int count = argc >= 2 && argc <= 4 ? atoi(argv[1]) : 0;
    pthread_t threads[MOST];
    busy_ns = argc >= 3 ? strtoull(argv[2], NULL, 10) : 0;
    asks_plainly = argc == 4;
    if (count < 1 || count > (busy_ns ? 1 : MOST))
        return 2;
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    if (asks_plainly)
        take_other();
    pthread_barrier_init(&all_ready, NULL, (unsigned)count);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, use_pool, NULL);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    if (busy_ns)
        printf("served %u, waited %lu\n", served, (unsigned long)waited_ms);
    return 0;
}
