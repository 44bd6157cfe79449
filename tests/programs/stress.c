/*
 * Several threads, each with several streams: allocates, launches a kernel
 * that fills the block after a while, and frees, at times with the kernel
 * still running, at times after checking what it wrote. Streams are destroyed
 * with work pending, too. Wherever a block is handed out too early, a late
 * kernel writes into somebody else's.
 *
 *   stress SEED THREADS ROUNDS
 *
 * The same arguments make the same calls, thread by thread. Exit: 0 where all
 * blocks held what they should, 3 where one did not.
 */
#include "gpu.h"

#include <pthread.h>

enum { STREAMS = 4, SLOTS = 32, MOST_WORDS = 1 << 18, MOST_NS = 3000000 };

struct slot {
    void *block; /* NULL: empty */
    uint32_t words, value;
    int stream;       /* STREAMS: the legacy default stream */
    unsigned version; /* of that stream, when the kernel was launched */
};

struct worker {
    pthread_t thread;
    uint64_t random;
    int rounds, checked, wrong;
    uint32_t next_value;
    gpu_stream streams[STREAMS + 1];
    unsigned versions[STREAMS + 1];
    struct slot slots[SLOTS];
    uint32_t *host;
};

static uint32_t draw(struct worker *worker, uint32_t below) {
    worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(worker->random >> 33) % below;
}

static void fill_slot(struct worker *worker, struct slot *slot) {
    /* As many small as large ones, whatever "small" is. */
    uint32_t most = (uint32_t)1 << (1 + draw(worker, 18));
    slot->words = 1 + draw(worker, most);
    slot->value = worker->next_value++;
    slot->stream = (int)draw(worker, STREAMS + 1);
    slot->version = worker->versions[slot->stream];
    GPU(gpu_malloc(&slot->block, slot->words * sizeof(uint32_t)));
    GPU(gpu_fill(worker->streams[slot->stream], slot->block, slot->value,
                 slot->words, draw(worker, MOST_NS)));
}

static void check_slot(struct worker *worker, const struct slot *slot) {
    if (slot->version == worker->versions[slot->stream])
        GPU(gpu_stream_sync(worker->streams[slot->stream]));
    else
        GPU(gpu_sync());
    GPU(gpu_copy_out(worker->host, slot->block,
                     slot->words * sizeof(uint32_t)));
    int right = 1;
    for (uint32_t i = 0; i < slot->words && right; i++)
        right = worker->host[i] == slot->value;
    worker->checked++;
    worker->wrong += !right;
}

/* Destroys a stream, with whatever is pending on it, and makes another. */
static void replace_stream(struct worker *worker) {
    int stream = (int)draw(worker, STREAMS);
    GPU(gpu_stream_destroy(worker->streams[stream]));
    GPU(gpu_stream_create(&worker->streams[stream]));
    worker->versions[stream]++;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    GPU(gpu_set_device(0));
    for (int i = 0; i < STREAMS; i++)
        GPU(gpu_stream_create(&worker->streams[i]));
    for (int round = 0; round < worker->rounds; round++) {
        struct slot *slot = &worker->slots[draw(worker, SLOTS)];
        if (draw(worker, 200) == 0)
            replace_stream(worker);
        if (!slot->block) {
            fill_slot(worker, slot);
            continue;
        }
        if (draw(worker, 3) == 0)
            check_slot(worker, slot);
        GPU(gpu_free(slot->block));
        slot->block = NULL;
    }
    for (int i = 0; i < SLOTS; i++) {
        if (!worker->slots[i].block)
            continue;
        check_slot(worker, &worker->slots[i]);
        GPU(gpu_free(worker->slots[i].block));
    }
    for (int i = 0; i < STREAMS; i++)
        GPU(gpu_stream_destroy(worker->streams[i]));
    return NULL;
}

int main(int argc, char **argv) {
    enum { MOST_THREADS = 16 };
    static struct worker workers[MOST_THREADS];
    int threads = argc == 4 ? atoi(argv[2]) : 0;
    int wrong = 0;
    if (threads < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "usage: stress SEED THREADS ROUNDS\n");
        return 2;
    }
    for (int i = 0; i < threads; i++) {
        struct worker *worker = &workers[i];
        worker->random = strtoull(argv[1], NULL, 10) * 1000 + (uint64_t)i;
        worker->next_value = (uint32_t)(i + 1) << 24;
        worker->rounds = atoi(argv[3]);
        worker->host = malloc(MOST_WORDS * sizeof(uint32_t));
        if (!worker->host ||
            pthread_create(&worker->thread, NULL, work, worker))
            return 1;
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        printf("thread %d: %d checked, %d wrong\n", i, workers[i].checked,
               workers[i].wrong);
        wrong |= workers[i].wrong != 0;
        free(workers[i].host);
    }
    return wrong ? 3 : 0;
}
