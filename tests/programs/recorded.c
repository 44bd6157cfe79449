/*
 * Threads that allocate and free, and note by themselves what they do, in files that
 * outlive the process: before each call what it is to be, and after it what came of
 * it.
 *
 *   recorded LOG THREADS STEPS MICROSECONDS [BYTES]
 *
 * Writes LOG.0, LOG.1 and so on, one for each thread: numbers of 64 bits, three for
 * each step, that is what it does (1: allocate, 2: free; three more where it is done),
 * the size and the address. Kills itself so many microseconds after its first step; 0: comes to its
 * end, with what it holds then. BYTES: its files may not become larger.
 *
 *   recorded fork
 *
 * A child of a process that has allocated allocates, too, and leaves at once.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_THREADS = 16, SLOTS = 64, ALLOCATE = 1, FREE = 2, DONE = 3 };

struct step {
    volatile uint64_t what, size, address;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    struct step *log;
    int steps;
    struct {
        void *block;
        uint64_t size;
    } slots[SLOTS];
};

static uint32_t draw(struct worker *worker, uint32_t below) {
    worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(worker->random >> 33) % below;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    GPU(gpu_set_device(0));
    for (int i = 0; i < worker->steps; i++) {
        struct step *step = &worker->log[i];
        uint32_t at = draw(worker, SLOTS);
        if (worker->slots[at].block) {
            step->size = worker->slots[at].size;
            step->address = (uintptr_t)worker->slots[at].block;
            step->what = FREE;
            GPU(gpu_free(worker->slots[at].block));
            step->what = FREE + DONE;
            worker->slots[at].block = NULL;
        } else {
            uint64_t size = 1 + draw(worker, 1u << (1 + draw(worker, 22)));
            worker->slots[at].size = size;
            step->size = size;
            step->what = ALLOCATE;
            GPU(gpu_malloc(&worker->slots[at].block, size));
            step->address = (uintptr_t)worker->slots[at].block;
            step->what = ALLOCATE + DONE;
        }
    }
    return NULL;
}

static struct worker workers[MOST_THREADS];

static void *killer(void *argument) {
    while (workers[0].log->what <= DONE)
        usleep(1000);
    usleep(*(useconds_t *)argument);
    kill(getpid(), SIGKILL);
    return NULL;
}

static struct step *log_of(const char *name, int number, int steps) {
    char path[4096];
    size_t size = (size_t)steps * sizeof(struct step);
    snprintf(path, sizeof path, "%s.%d", name, number);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, (off_t)size))
        return NULL;
    void *log = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return log == MAP_FAILED ? NULL : log;
}

static int forks(void) {
    void *block;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, 1 << 20));
    pid_t child = fork();
    if (child == 0) {
        void *another = NULL;
        gpu_free(block);
        gpu_malloc(&another, 1 << 20);
        exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    GPU(gpu_malloc(&block, 2 << 20));
    return status != 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "fork"))
        return forks();
    int threads = argc == 5 || argc == 6 ? atoi(argv[2]) : 0;
    if (threads < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "usage: recorded LOG THREADS STEPS MICROSECONDS [BYTES]\n");
        return 2;
    }
    useconds_t after = (useconds_t)atoi(argv[4]);
    if (argc == 6) {
        struct rlimit most = {strtoull(argv[5], NULL, 10), RLIM_INFINITY};
        void *block;
        /* The simulated device has its own file by then. */
        GPU(gpu_set_device(0));
        GPU(gpu_malloc(&block, 1));
        GPU(gpu_free(block));
        if (setrlimit(RLIMIT_FSIZE, &most))
            return 1;
    }
    for (int i = 0; i < threads; i++) {
        struct worker *worker = &workers[i];
        worker->random = (uint64_t)i * 1000 + after;
        worker->steps = atoi(argv[3]);
        worker->log = log_of(argv[1], i, worker->steps);
        if (!worker->log || pthread_create(&worker->thread, NULL, work, worker))
            return 1;
    }
    pthread_t last;
    if (after && pthread_create(&last, NULL, killer, &after))
        return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    if (after)
        pause();
    return 0;
}
