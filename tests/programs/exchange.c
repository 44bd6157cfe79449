/*
 * Producers allocate blocks, have kernels fill them and pass them on; consumers
 * check what is in them and free them, in another thread than they came from.
 * Some of it goes by page-locked memory, which is freed as soon as the copy
 * from it was asked for. Producers end and are replaced on the way. One more thread captures graphs
 * all the while, which none of the others may spoil.
 *
 *   exchange SEED PAIRS BLOCKS [one]
 *
 * PAIRS producers and as many consumers pass on BLOCKS blocks each; with `one`
 * all threads share a processor, which changes where they are interrupted.
 * Exit: 0 where every block held what it should, 3 where one did not.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <pthread.h>
#include <sched.h>

enum { RING = 16, MOST_WORDS = 1 << 16, MOST_PAIRS = 8, LIVES = 4 };

struct parcel {
    void *block;
    uint32_t words, value;
    gpu_stream stream;
};

/* What is on its way from producers to consumers. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct parcel parcels[RING];
    int count;
} ring = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {{0}}, 0};

struct worker {
    pthread_t thread;
    uint64_t random;
    int blocks, checked, wrong;
    gpu_stream stream;
};

static int done; /* under the ring's lock */

static uint32_t draw(struct worker *worker, uint32_t below) {
    worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(worker->random >> 33) % below;
}

static void put(struct parcel parcel) {
    pthread_mutex_lock(&ring.lock);
    while (ring.count == RING)
        pthread_cond_wait(&ring.changed, &ring.lock);
    ring.parcels[ring.count++] = parcel;
    pthread_cond_broadcast(&ring.changed);
    pthread_mutex_unlock(&ring.lock);
}

/* Some parcel, not the one that has waited longest. */
static struct parcel get(struct worker *worker) {
    pthread_mutex_lock(&ring.lock);
    while (ring.count == 0)
        pthread_cond_wait(&ring.changed, &ring.lock);
    uint32_t picked = draw(worker, (uint32_t)ring.count);
    struct parcel parcel = ring.parcels[picked];
    ring.parcels[picked] = ring.parcels[--ring.count];
    pthread_cond_broadcast(&ring.changed);
    pthread_mutex_unlock(&ring.lock);
    return parcel;
}

/* Fills a block by a copy from memory that is freed at once. */
static void stage(struct worker *worker, const struct parcel *parcel) {
    size_t size = parcel->words * sizeof(uint32_t);
    uint32_t *host;
    GPU(gpu_host_alloc((void **)&host, size, 1));
    for (uint32_t word = 0; word < parcel->words; word++)
        host[word] = parcel->value;
    GPU(gpu_spin(parcel->stream, draw(worker, 1000000)));
    GPU(gpu_copy_unified(parcel->block, host, size, parcel->stream));
    GPU(gpu_free_host(host));
}

static void *produce(void *argument) {
    struct worker *worker = argument;
    GPU(gpu_set_device(0));
    for (int i = 0; i < worker->blocks; i++) {
        struct parcel parcel = {NULL, 0, draw(worker, 1u << 31), NULL};
        parcel.words = 1 + draw(worker, 1u << (1 + draw(worker, 16)));
        parcel.stream = worker->stream;
        GPU(gpu_malloc(&parcel.block, parcel.words * sizeof(uint32_t)));
        if (draw(worker, 4) == 0)
            stage(worker, &parcel);
        else
            GPU(gpu_fill(parcel.stream, parcel.block, parcel.value,
                         parcel.words, draw(worker, 1000000)));
        if (draw(worker, 8) == 0) {
            /* Freed by who made it, with the kernel running. */
            GPU(gpu_free(parcel.block));
            i--;
            continue;
        }
        put(parcel);
    }
    return NULL;
}

/* Producers come and go; what they cached or passed on stays good. */
static void *produce_in_turns(void *argument) {
    struct worker *worker = argument;
    int all = worker->blocks;
    for (int life = 0; life < LIVES; life++) {
        pthread_t thread;
        worker->blocks = all / LIVES + (life == 0 ? all % LIVES : 0);
        if (pthread_create(&thread, NULL, produce, worker))
            exit(1);
        pthread_join(thread, NULL);
    }
    return NULL;
}

static int holds(const uint32_t *words, const struct parcel *parcel) {
    for (uint32_t word = 0; word < parcel->words; word++)
        if (words[word] != parcel->value)
            return 0;
    return 1;
}

static int check_by_pinned(const struct parcel *parcel) {
    size_t size = parcel->words * sizeof(uint32_t);
    uint32_t *host;
    GPU(gpu_malloc_host((void **)&host, size));
    GPU(gpu_copy_unified(host, parcel->block, size, parcel->stream));
    GPU(gpu_stream_sync(parcel->stream));
    int right = holds(host, parcel);
    GPU(gpu_free_host(host));
    return right;
}

static void *consume(void *argument) {
    struct worker *worker = argument;
    uint32_t *host = malloc(2 * MOST_WORDS * sizeof *host);
    if (!host)
        exit(1);
    GPU(gpu_set_device(0));
    for (int i = 0; i < worker->blocks; i++) {
        struct parcel parcel = get(worker);
        int right;
        if (draw(worker, 4) == 0) {
            right = check_by_pinned(&parcel);
        } else {
            GPU(gpu_stream_sync(parcel.stream));
            GPU(gpu_copy_out(host, parcel.block, parcel.words * sizeof *host));
            right = holds(host, &parcel);
        }
        worker->checked++;
        worker->wrong += !right;
        if (draw(worker, 2))
            GPU(gpu_fill(parcel.stream, parcel.block, ~parcel.value,
                         parcel.words, draw(worker, 1000000)));
        GPU(gpu_free(parcel.block));
    }
    free(host);
    return NULL;
}

static int is_done(void) {
    pthread_mutex_lock(&ring.lock);
    int answer = done;
    pthread_mutex_unlock(&ring.lock);
    return answer;
}

/* Captures and launches until all else is done. */
static void *capture(void *argument) {
    struct worker *worker = argument;
    uint32_t word, value = 0;
    void *block, *other, *executable;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, 512));
    GPU(gpu_fill(worker->stream, block, 0, 1, 0));
    while (!is_done()) {
        int relaxed = ++value % 2;
        gpu_graph graph;
        GPU(gpu_capture_begin(worker->stream, relaxed
                                                  ? GPU_CAPTURE_RELAXED
                                                  : GPU_CAPTURE_THREAD_LOCAL));
        GPU(gpu_fill(worker->stream, block, value, 1, 1000));
        if (relaxed) {
            GPU(gpu_malloc(&other, 1 + draw(worker, 1 << 20)));
            GPU(gpu_free(other));
        }
        sched_yield();
        GPU(gpu_capture_end(worker->stream, &graph));
        GPU(gpu_graph_prepare(&executable, graph));
        GPU(gpu_graph_launch(executable, worker->stream));
        GPU(gpu_graph_destroy(executable));
        GPU(gpu_stream_sync(worker->stream));
        GPU(gpu_copy_out(&word, block, sizeof word));
        worker->wrong += word != value;
    }
    GPU(gpu_free(block));
    return NULL;
}

static void start(struct worker *worker, void *(*work)(void *)) {
    if (pthread_create(&worker->thread, NULL, work, worker))
        exit(1);
}

static int join(struct worker *worker) {
    pthread_join(worker->thread, NULL);
    return worker->wrong;
}

int main(int argc, char **argv) {
    static struct worker workers[2 * MOST_PAIRS + 1];
    int pairs = argc >= 4 ? atoi(argv[2]) : 0, wrong = 0, checked = 0;
    if (pairs < 1 || pairs > MOST_PAIRS) {
        fprintf(stderr, "usage: exchange SEED PAIRS BLOCKS [one]\n");
        return 2;
    }
    if (argc == 5) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    GPU(gpu_set_device(0));
    for (int i = 0; i < 2 * pairs + 1; i++) {
        workers[i].random = strtoull(argv[1], NULL, 10) * 1000 + (uint64_t)i;
        workers[i].blocks = atoi(argv[3]);
        GPU(gpu_stream_create(&workers[i].stream));
    }
    start(&workers[2 * pairs], capture);
    for (int i = 0; i < 2 * pairs; i++)
        start(&workers[i], i % 2 ? consume : produce_in_turns);
    for (int i = 0; i < 2 * pairs; i++) {
        wrong += join(&workers[i]);
        checked += workers[i].checked;
    }
    pthread_mutex_lock(&ring.lock);
    done = 1;
    pthread_mutex_unlock(&ring.lock);
    int spoiled = join(&workers[2 * pairs]);
    printf("%d checked, %d wrong; %d graphs wrong\n", checked, wrong, spoiled);
    return wrong || spoiled ? 3 : 0;
}
