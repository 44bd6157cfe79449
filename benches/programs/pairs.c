/*
 * Allocates and frees, and says how long that took: the questions that
 * benches/arena asks of the arena, asked of whatever gpu.h stands for. One
 * JSON line a figure.
 *
 *   pairs hit ROUNDS PAIRS         the same size over and over, the best round
 *   pairs steady PAIRS DOUBLINGS   random replacement of so many live blocks
 *   pairs random BLOCKS            RMM's random_allocations
 *   pairs threads MS DOUBLINGS     each thread replaces its own 64 blocks
 *   pairs exchange PAIRS           one thread allocates, another frees
 *   pairs count SIZE PAIRS         nothing else: for counting instructions
 *
 * DOUBLINGS: sizes are from 512 bytes up to 512 * 2^DOUBLINGS.
 */
#include "gpu.h"
#include "workload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { LIVE = 64, ROUND = 1000, BATCH = 64, UNDER_WAY = 16, MOST_THREADS = 4 };

static const size_t hit_sizes[] = {512,     4 << 10, 64 << 10, 1 << 20,
                                   2 << 20, 4 << 20, 16 << 20, 64 << 20};
static const uint32_t steady_live[] = {16, 256, 1000, 4000};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void pair(size_t size) {
    void *block;
    GPU(gpu_malloc(&block, size));
    GPU(gpu_free(block));
}

static void hit(int rounds, long pairs) {
    for (size_t i = 0; i < COUNT(hit_sizes); i++) {
        double best = INFINITY;
        for (int round = 0; round < rounds; round++) {
            double start = now_ns();
            for (long n = 0; n < pairs; n++)
                pair(hit_sizes[i]);
            double ns = (now_ns() - start) / (double)pairs;
            best = ns < best ? ns : best;
        }
        printf("{\"size\": %zu, \"ns\": %.2f}\n", hit_sizes[i], best);
    }
}

/* Blocks of a fixed number, which are replaced one at a time. */
static void **fill(uint32_t count, struct draws *draws) {
    void **blocks = need(malloc(count * sizeof *blocks));
    for (uint32_t i = 0; i < count; i++)
        GPU(gpu_malloc(&blocks[i], next_draw(draws).size));
    return blocks;
}

static void replace(void **blocks, struct draws *draws) {
    struct draw draw = next_draw(draws);
    GPU(gpu_free(blocks[draw.slot]));
    GPU(gpu_malloc(&blocks[draw.slot], draw.size));
}

static void empty(void **blocks, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        GPU(gpu_free(blocks[i]));
    free(blocks);
}

static void steady_at(uint32_t live, long pairs, long doublings,
                      uint64_t *each) {
    struct draws draws = make_draws(1, live, (double)doublings);
    void **blocks = fill(live, &draws);
    for (long n = 0; n < pairs; n++)
        replace(blocks, &draws);
    double start = now_ns();
    for (long n = 0; n < pairs; n++)
        replace(blocks, &draws);
    double mean = (now_ns() - start) / (double)pairs;
    for (long n = 0; n < pairs; n++) {
        uint64_t from = ticks();
        replace(blocks, &draws);
        each[n] = ticks() - from;
    }
    printf("{\"live\": %u, \"ns\": %.2f", live, mean);
    print_spread(each, (size_t)pairs);
    printf("}\n");
    empty(blocks, live);
    free(draws.all);
}

static void steady(long pairs, long doublings) {
    uint64_t *each = need(malloc((size_t)pairs * sizeof *each));
    for (size_t i = 0; i < COUNT(steady_live); i++)
        steady_at(steady_live[i], pairs, doublings, each);
    free(each);
}

/*
 * What RMM's benchmark random_allocations does: 73 of 100 steps allocate, up
 * to so many blocks in all and 16 000 MiB at a time; the others free one by
 * swap-remove; sizes are uniform up to a bound.
 */
struct held {
    void *block;
    size_t size;
};

static double random_run(struct held *live, long blocks, size_t largest) {
    const size_t most = (size_t)16000 << 20;
    uint64_t random = 7;
    size_t bytes = 0;
    long count = 0, left = blocks;
    double start = now_ns();
    for (;;) {
        size_t size = 1 + next_random(&random) % largest;
        if (left > 0 && (count == 0 || (next_random(&random) % 100 < 73 &&
                                        bytes + size <= most))) {
            GPU(gpu_malloc(&live[count].block, size));
            live[count++].size = size;
            bytes += size;
            left--;
        } else if (count == 0) {
            break;
        } else {
            long at = (long)(next_random(&random) % (uint64_t)count);
            struct held held = live[at];
            live[at] = live[--count];
            bytes -= held.size;
            GPU(gpu_free(held.block));
        }
    }
    return (now_ns() - start) / (2.0 * (double)blocks);
}

static void random_allocations(long blocks) {
    static const size_t mib[] = {1, 4, 64};
    struct held *live = need(malloc((size_t)blocks * sizeof *live));
    for (size_t i = 0; i < COUNT(mib); i++) {
        double first = random_run(live, blocks, mib[i] << 20);
        double ns = random_run(live, blocks, mib[i] << 20);
        printf("{\"largest_mib\": %zu, \"first_ns\": %.2f, \"ns\": %.2f}\n",
               mib[i], first, ns);
    }
    free(live);
}

struct worker {
    pthread_t thread;
    pthread_barrier_t *ready;
    uint64_t seed;
    long ms, doublings;
    double rate;
};

/* Pairs a second, over so many milliseconds. */
static double rate(void **blocks, struct draws *draws, double ms) {
    double start = now_ns();
    for (long pairs = ROUND;; pairs += ROUND) {
        for (long n = 0; n < ROUND; n++)
            replace(blocks, draws);
        double passed = now_ns() - start;
        if (passed >= ms * 1e6)
            return (double)pairs * 1e9 / passed;
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    GPU(gpu_set_device(0));
    struct draws draws = make_draws(worker->seed, LIVE, (double)worker->doublings);
    void **blocks = fill(LIVE, &draws);
    rate(blocks, &draws, (double)worker->ms / 4);
    pthread_barrier_wait(worker->ready);
    worker->rate = rate(blocks, &draws, (double)worker->ms);
    empty(blocks, LIVE);
    free(draws.all);
    return NULL;
}

/* What each thread does in a second is added up. Each works for so long that it is no
 * matter which of them is woken first. */
static void threads(long ms, long doublings) {
    for (int count = 1; count <= MOST_THREADS; count *= 2) {
        struct worker workers[MOST_THREADS];
        pthread_barrier_t ready;
        double all = 0;
        pthread_barrier_init(&ready, NULL, (unsigned)count);
        for (int i = 0; i < count; i++) {
            workers[i] = (struct worker){.ready = &ready,
                                         .seed = (uint64_t)i + 1,
                                         .ms = ms,
                                         .doublings = doublings};
            pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        }
        for (int i = 0; i < count; i++) {
            pthread_join(workers[i].thread, NULL);
            all += workers[i].rate;
        }
        pthread_barrier_destroy(&ready);
        printf("{\"threads\": %d, \"pairs_per_s\": %.0f, \"ns\": %.2f}\n",
               count, all, (double)count * 1e9 / all);
    }
}

/* A ring of batches between one producer and one consumer. Blocks change
 * hands by batches, so that what is measured is not the ring. */
struct ring {
    void *batches[UNDER_WAY][BATCH];
    _Alignas(64) atomic_long made;
    _Alignas(64) atomic_long freed;
    long batch_count;
};

static void wait_until(atomic_long *counter, long least) {
    while (atomic_load_explicit(counter, memory_order_acquire) < least)
        sched_yield();
}

static void *consume(void *argument) {
    struct ring *ring = argument;
    GPU(gpu_set_device(0));
    for (long n = 0; n < ring->batch_count; n++) {
        wait_until(&ring->made, n + 1);
        for (int i = 0; i < BATCH; i++)
            GPU(gpu_free(ring->batches[n % UNDER_WAY][i]));
        atomic_store_explicit(&ring->freed, n + 1, memory_order_release);
    }
    return NULL;
}

static void exchange(long pairs) {
    static const size_t sizes[] = {4 << 10, 1 << 20};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        static struct ring ring;
        pthread_t consumer;
        atomic_store(&ring.made, 0);
        atomic_store(&ring.freed, 0);
        ring.batch_count = pairs / BATCH;
        double start = now_ns();
        pthread_create(&consumer, NULL, consume, &ring);
        for (long n = 0; n < ring.batch_count; n++) {
            wait_until(&ring.freed, n + 1 - UNDER_WAY);
            for (int k = 0; k < BATCH; k++)
                GPU(gpu_malloc(&ring.batches[n % UNDER_WAY][k], sizes[i]));
            atomic_store_explicit(&ring.made, n + 1, memory_order_release);
        }
        pthread_join(consumer, NULL);
        printf("{\"size\": %zu, \"ns\": %.2f}\n", sizes[i],
               (now_ns() - start) / (double)(ring.batch_count * BATCH));
    }
}

int main(int argc, char **argv) {
    const char *question = argc > 1 ? argv[1] : "";
    long first = argc > 2 ? atol(argv[2]) : 0;
    long second = argc > 3 ? atol(argv[3]) : 0;
    GPU(gpu_set_device(0));
    if (!strcmp(question, "hit")) {
        hit((int)first, second);
    } else if (!strcmp(question, "steady")) {
        steady(first, second);
    } else if (!strcmp(question, "random")) {
        random_allocations(first);
    } else if (!strcmp(question, "threads")) {
        threads(first, second);
    } else if (!strcmp(question, "exchange")) {
        exchange(first);
    } else if (!strcmp(question, "count")) {
        for (long n = 0; n < second; n++)
            pair((size_t)first);
    } else {
        fprintf(stderr, "usage: pairs QUESTION NUMBER...; see pairs.c\n");
        return 2;
    }
    return 0;
}
