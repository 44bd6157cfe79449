/*
 * Threads that take and give back device memory in all ways that there are, in
 * any order, under a limit.
 *
 *   families_mix THREADS ROUNDS SEED
 *
 * Prints how many requests were served and refused, and the most bytes that the
 * simulated driver counted at once. Fails on any other answer, and where a pool's
 * refusal leaves an address.
 */
#include "families.h"

#include <pthread.h>

enum { HELD = 12, LARGEST = 24 };

static int rounds, seed;
static size_t served, refused;

static void give_back(struct taken *from) {
    GPU(ways[from->way].give(from));
    from->size = 0;
}

static void *run(void *number) {
    unsigned state = (unsigned)seed * 1000 + (unsigned)(uintptr_t)number;
    struct taken held[HELD] = {{0}};
    GPU(gpu_set_device(0));
    for (int i = 0; i < rounds; i++) {
        struct taken *one = &held[rand_r(&state) % HELD];
        if (one->size) {
            give_back(one);
            continue;
        }
        *one = (struct taken){.way = rand_r(&state) % (FAMILIES - 1),
                              .size = (size_t)(1 + rand_r(&state) % LARGEST) << 20};
        int code = ways[one->way].take(one);
        if (code && code != GPU_OUT_OF_MEMORY)
            GPU(code);
        if (code && one->at && !strcmp(ways[one->way].name, "pool")) {
            fprintf(stderr, "a refused request left an address behind\n");
            exit(1);
        }
        if (code) {
            gpu_last_error();
            one->size = 0;
        }
        __atomic_fetch_add(code ? &refused : &served, 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < HELD; i++)
        if (held[i].size)
            give_back(&held[i]);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    int count = atoi(argv[1]);
    rounds = atoi(argv[2]);
    seed = atoi(argv[3]);
    pthread_t threads[16];
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    for (int i = 0; i < count && i < 16; i++)
        pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)i);
    for (int i = 0; i < count && i < 16; i++)
        pthread_join(threads[i], NULL);
    uint64_t (*peak)(const char *, int);
    *(void **)&peak = find("sim_cuda_peak_bytes");
    printf("served %zu, refused %zu, peak %zu\n", served, refused,
           (size_t)peak(NULL, 0));
    return 0;
}
