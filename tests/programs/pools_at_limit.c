/*
 * Pools of CUDA's whose room is not in one piece: each has reserved a piece of
 * 32 MiB, of which 12 in the middle are in use, and all of them are asked for 16
 * MiB at once, each by a thread of its own. Under a limit of just these pieces
 * each would have to grow, although it has the room.
 *
 *   pools_at_limit POOLS
 *   pools_at_limit 1 NS [plain|again]
 *
 * With NS the stream is busy for so long then, and the pool is asked for 8 and 4 MiB
 * after that, for which there is room in one piece. With "plain", as much as another
 * pool gives back meanwhile (32 MiB) is asked for before, and not from a pool. With
 * "again", another pool did the same before on that stream, which was busy for longer than
 * anybody waits, and was destroyed. Prints how many of these were served, and how many
 * milliseconds the last one waited.
 *
 *   pools_at_limit turns
 *   pools_at_limit beside
 *   pools_at_limit pending
 *   pools_at_limit crowd
 *
 * One pool is asked on a busy stream and on one with nothing to do in turn; or on the
 * busy one once, for more than the end of its last piece, and then for 12 and 4 MiB on
 * the other; or so while the busy one has yet to get to a free; or by four threads on four streams, on which they also start work. Prints how
 * many MiB it has reserved when all is done.
 *
 *   pools_at_limit again [apart]
 *
 * A block is freed in the order of a busy stream, and one of its size asked for on that
 * stream and on another one; with "apart", when the stream has got there, of a pool that
 * passes nothing on to other streams. Prints which of these were served.
 */
#include "families.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, MIB = 1 << 20, THRESHOLD = 4 };

static pthread_barrier_t all_ready;
static uint64_t busy_ns;
static int asks_plainly;
static int does_again;
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

static void use_pool(gpu_stream stream, uint64_t busy_ns) {
    unsigned long long keep = ~0ULL;
    void *pool;
    address first, middle, last;
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
        int is_served = !take(&last, size, pool, stream);
        waited_ms = now_ms() - begin;
        served += is_served;
        if (is_served && does_again)
            GPU(CALL("cuMemFreeAsync", (address, void *), last, stream));
    }
    if (does_again)
        GPU(CALL("cuMemFreeAsync", (address, void *), middle, stream));
    GPU(gpu_stream_sync(stream));
    if (does_again)
        GPU(CALL("cuMemPoolDestroy", (void *), pool));
}

static void *use_pools(void *unused) {
    gpu_stream stream;
    (void)unused;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    if (does_again) {
        use_pool(stream, 2000000000000);
        served = 0;
    }
    use_pool(stream, busy_ns);
    return NULL;
}

/* What is reserved of a pool in the end. */
static int tell_reserved(void *pool) {
    enum { RESERVED = 5 };
    unsigned long long reserved = 0;
    GPU(gpu_sync());
    GPU(CALL("cuMemPoolTrimTo", (void *, size_t), pool, 0));
    GPU(CALL("cuMemPoolGetAttribute", (void *, int, void *), pool, RESERVED,
             &reserved));
    printf("reserved %llu\n", reserved >> 20);
    return 0;
}

static gpu_stream busy, idle;
static void *shared;
static address blocks[10];

/* A pool with so many blocks of 12 MiB. */
static void fill(int count) {
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&busy));
    GPU(gpu_stream_create(&idle));
    GPU(CALL("cuMemPoolCreate", (void **, const void *), &shared, &here));
    for (int i = 0; i < count; i++)
        GPU(take(&blocks[i], 12 * MIB, shared, busy));
}

/* Frees every `step`th of them but the last two, and keeps the stream busy. */
static void scatter(int count, int step) {
    for (int i = 0; i < count - 2; i += step)
        GPU(CALL("cuMemFreeAsync", (address, void *), blocks[i], busy));
    GPU(gpu_stream_sync(busy));
    GPU(gpu_spin(busy, 2000000000));
}

static int take_turns(void) {
    enum { ROUNDS = 20 };
    address more;
    fill(10);
    scatter(10, 2);
    for (int i = 0; i < ROUNDS; i++) {
        take(&more, 16 * MIB, shared, busy);
        take(&more, 16 * MIB, shared, idle);
    }
    return tell_reserved(shared);
}

static int take_beside(int is_pending) {
    address more;
    fill(5);
    scatter(5, 5);
    if (is_pending)
        GPU(CALL("cuMemFreeAsync", (address, void *), blocks[2], busy));
    take(&more, 16 * MIB, shared, busy);
    take(&more, 12 * MIB, shared, idle);
    take(&more, 4 * MIB, shared, idle);
    return tell_reserved(shared);
}

enum { CROWD = 4 };
static gpu_stream streams[CROWD];

static void *take_and_work(void *seed) {
    enum { CALLS = 150 };
    unsigned state = (unsigned)(uintptr_t)seed;
    GPU(gpu_set_device(0));
    for (int i = 0; i < CALLS; i++) {
        gpu_stream stream = streams[rand_r(&state) % CROWD];
        address more;
        if (rand_r(&state) % 3)
            take(&more, 20 * MIB, shared, stream);
        else
            GPU(gpu_spin(stream, 1000 + rand_r(&state) % 30000));
    }
    return NULL;
}

static int crowd(void) {
    pthread_t threads[CROWD];
    address more;
    fill(10);
    for (int i = 0; i < CROWD; i++)
        GPU(gpu_stream_create(&streams[i]));
    scatter(10, 2);
    take(&more, 20 * MIB, shared, busy);
    for (int i = 0; i < CROWD; i++)
        pthread_create(&threads[i], NULL, take_and_work, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < CROWD; i++)
        pthread_join(threads[i], NULL);
    return tell_reserved(shared);
}

static int take_again(int is_apart) {
    enum { COUNT = 5, OPPORTUNISTIC = 2, NO = 0 };
    int no = NO;
    address more;
    fill(COUNT);
    if (is_apart)
        GPU(CALL("cuMemPoolSetAttribute", (void *, int, void *), shared, OPPORTUNISTIC, &no));
    else
        GPU(gpu_spin(busy, 2000000000000));
    GPU(CALL("cuMemFreeAsync", (address, void *), blocks[1], busy));
    if (is_apart)
        GPU(gpu_stream_sync(busy));
    int own = take(&more, 12 * MIB, shared, busy);
    int other = take(&more, 12 * MIB, shared, idle);
    printf("own %d, other %d\n", !own, !other);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "turns"))
        return take_turns();
    if (argc == 2 && !strcmp(argv[1], "beside"))
        return take_beside(0);
    if (argc == 2 && !strcmp(argv[1], "pending"))
        return take_beside(1);
    if (argc == 2 && !strcmp(argv[1], "crowd"))
        return crowd();
    if (argc >= 2 && !strcmp(argv[1], "again"))
        return take_again(argc == 3 && !strcmp(argv[2], "apart"));
    int count = argc >= 2 && argc <= 4 ? atoi(argv[1]) : 0;
    pthread_t threads[MOST];
    busy_ns = argc >= 3 ? strtoull(argv[2], NULL, 10) : 0;
    asks_plainly = argc == 4 && !strcmp(argv[3], "plain");
    does_again = argc == 4 && !strcmp(argv[3], "again");
    if (count < 1 || count > (busy_ns ? 1 : MOST))
        return 2;
    if (argc == 4 && !asks_plainly && !does_again)
        return 2;
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    if (asks_plainly)
        take_other();
    pthread_barrier_init(&all_ready, NULL, (unsigned)count);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, use_pools, NULL);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    if (busy_ns)
        printf("served %u, waited %lu\n", served, (unsigned long)waited_ms);
    return 0;
}
