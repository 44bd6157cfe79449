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
#include <unistd.h>

enum { LIVE = 64, ROUND = 1000, BATCH = 64, UNDER_WAY = 16 };
enum { MOST_THREADS = 4, COUNTS = 3, TURNS = 9 };

static const int thread_counts[COUNTS] = {1, 2, MOST_THREADS};

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

/* What the threads of a question share: they begin together, and time runs from then on
 * also for one that is woken late. */
struct workers {
    pthread_barrier_t ready;
    double start_ns;
    long ms, doublings, processors;
};

struct worker {
    struct workers *all;
    pthread_t thread;
    int number;
    double rate[TURNS][COUNTS];
};

/* Pairs a second, for so many milliseconds from a start on. */
static double rate(void **blocks, struct draws *draws, double start, double ms) {
    for (long pairs = ROUND;; pairs += ROUND) {
        for (long n = 0; n < ROUND; n++)
            replace(blocks, draws);
        double passed = now_ns() - start;
        if (passed >= ms * 1e6)
            return (double)pairs * 1e9 / passed;
    }
}

/* Waits for all; when they began. */
static double begin(struct workers *all) {
    if (pthread_barrier_wait(&all->ready) == PTHREAD_BARRIER_SERIAL_THREAD)
        all->start_ns = now_ns();
    pthread_barrier_wait(&all->ready);
    return all->start_ns;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct workers *all = worker->all;
    double ms = (double)all->ms;
    GPU(gpu_set_device(0));
    struct draws draws =
        make_draws((uint64_t)worker->number + 1, LIVE, (double)all->doublings);
    void **blocks = fill(LIVE, &draws);
    rate(blocks, &draws, now_ns(), ms);
    for (int turn = 0; turn < TURNS; turn++)
        for (int at = 0; at < COUNTS; at++) {
            double start = begin(all);
            worker->rate[turn][at] = 0;
            if (worker->number < thread_counts[at])
                worker->rate[turn][at] = rate(blocks, &draws, start, ms);
            else if (worker->number < all->processors)
                while (now_ns() - start < ms * 1e6)
                    ;
        }
    empty(blocks, LIVE);
    free(draws.all);
    return NULL;
}

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(double *all) {
    qsort(all, TURNS, sizeof *all, compare_numbers);
    return all[TURNS / 2];
}

/* One, two and four threads are measured in turn, several times, since what else the
 * machine does changes from second to second; and a processor that has no thread of
 * theirs spins, so that all run at one clock and threads stay where they are. */
static void threads(long ms, long doublings) {
    struct workers all = {.ms = ms,
                          .doublings = doublings,
                          .processors = sysconf(_SC_NPROCESSORS_ONLN)};
    static struct worker workers[MOST_THREADS];
    double rates[COUNTS][TURNS] = {{0}}, over_one[COUNTS][TURNS];
    pthread_barrier_init(&all.ready, NULL, MOST_THREADS);
    for (int i = 0; i < MOST_THREADS; i++) {
        workers[i] = (struct worker){.all = &all, .number = i};
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (int i = 0; i < MOST_THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        for (int turn = 0; turn < TURNS; turn++)
            for (int at = 0; at < COUNTS; at++)
                rates[at][turn] += workers[i].rate[turn][at];
    }
    pthread_barrier_destroy(&all.ready);
    for (int turn = 0; turn < TURNS; turn++)
        for (int at = 0; at < COUNTS; at++)
            over_one[at][turn] = rates[at][turn] / rates[0][turn];
    for (int at = 0; at < COUNTS; at++) {
        double together = middle(rates[at]);
        printf("{\"threads\": %d, \"pairs_per_s\": %.0f, \"ns\": %.2f, "
               "\"over_one\": %.3f}\n",
               thread_counts[at], together,
               (double)thread_counts[at] * 1e9 / together, middle(over_one[at]));
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
