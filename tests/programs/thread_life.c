/*
 * Threads that come and go, and what they leave.
 *
 *   thread_life brief THREADS  so many threads, eight at a time, of which each
 *                              allocates and frees once, and every eighth six
 *                              times: what they add to the process, and to the
 *                              device, once a tenth of them has ended, or 3072
 *   thread_life forks FORKS    forks while a thread is ending, in a destructor of
 *                              its own, and others allocate: what children are
 *                              told by CUDA, which does not survive a fork; every
 *                              eighth executes this program anew, and of the
 *                              others half end by all exit handlers
 *   thread_life leaf           allocates and frees a hundred times
 *
 * The last line says how many allocations there were, and as many frees.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

/* By then so many have allocated often that an allocator has made all the caches for
 * threads that it will ever have, several times over. */
enum { ALL_CACHES = 3072 };
enum { AT_ONCE = 8, OFTEN = 6, BUSY = 3, LEAF = 100, LEAF_ENDS = 11 };

static atomic_long allocations;
static atomic_int is_over;

static void pair(size_t size) {
    void *block;
    GPU(gpu_malloc(&block, size));
    GPU(gpu_free(block));
    atomic_fetch_add(&allocations, 1);
}

static void *brief(void *number) {
    size_t nth = (size_t)number;
    GPU(gpu_set_device(0));
    for (int i = 0; i < (nth % 8 ? 1 : OFTEN); i++)
        pair(512 + nth % 128 * 512);
    return NULL;
}

static long resident_kib(void) {
    long size, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &size, &pages) != 2)
        exit(1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

static size_t available(void) {
    size_t now, total;
    GPU(gpu_mem_info(&now, &total));
    return now;
}

static void start(pthread_t *thread, void *(*work)(void *), size_t number) {
    if (pthread_create(thread, NULL, work, (void *)number)) {
        fprintf(stderr, "no thread\n");
        exit(1);
    }
}

static void run_briefly(size_t from, size_t to) {
    for (size_t number = from; number < to; number += AT_ONCE) {
        pthread_t threads[AT_ONCE];
        for (size_t i = 0; i < AT_ONCE; i++)
            start(&threads[i], brief, number + i);
        for (size_t i = 0; i < AT_ONCE; i++)
            pthread_join(threads[i], NULL);
    }
}

static void come_and_go(size_t threads) {
    size_t tenth = threads / 10, most = threads / 2;
    size_t warm = tenth > ALL_CACHES ? tenth : ALL_CACHES;
    warm = (warm < most ? warm : most) / AT_ONCE * AT_ONCE;
    run_briefly(0, warm);
    size_t before = available();
    long resident = resident_kib();
    run_briefly(warm, threads);
    printf("device: %zu KiB more\n", (before - available()) >> 10);
    printf("process: %ld KiB more\n", resident_kib() - resident);
}

static void *is_busy(void *number) {
    GPU(gpu_set_device(0));
    for (size_t i = (size_t)number; !atomic_load(&is_over); i++)
        pair(512 + i % 200 * 512);
    return NULL;
}

static pthread_key_t key;
static atomic_int is_ending, has_forked;

/* Of a thread whose other variables are gone. */
static void end(void *unused) {
    (void)unused;
    atomic_store(&is_ending, 1);
    for (size_t i = 0; !atomic_load(&has_forked); i++)
        pair(512 + i % 16 * 512);
}

static void *ends(void *number) {
    GPU(gpu_set_device(0));
    for (int i = 0; i < OFTEN; i++)
        pair(4096);
    pthread_setspecific(key, number);
    return NULL;
}

enum way { LEAVES, EXITS, EXECUTES };

/* Whatever the answers are, they come, and so does the end. */
static void be_child(void *of_parent, enum way way) {
    void *block = NULL;
    alarm(10);
    if (way == EXECUTES) {
        execl("/proc/self/exe", "thread_life", "leaf", (char *)NULL);
        _exit(100);
    }
    int freed = gpu_free(of_parent);
    int small = gpu_malloc(&block, 4096), large = gpu_malloc(&block, 4 << 20);
    char *own = malloc(1 << 16);
    free(own);
    int told = (freed != 0) | (small != 0) << 1 | (large != 0) << 2 | (!own) << 3;
    if (way == EXITS)
        exit(told);
    _exit(told);
}

static int fork_once(void *of_parent, enum way way) {
    pthread_t thread;
    int status = 0;
    atomic_store(&is_ending, 0);
    atomic_store(&has_forked, 0);
    start(&thread, ends, 1);
    while (!atomic_load(&is_ending))
        sched_yield();
    pid_t child = fork();
    if (!child)
        be_child(of_parent, way);
    atomic_store(&has_forked, 1);
    if (child < 0 || waitpid(child, &status, 0) != child)
        exit(1);
    pthread_join(thread, NULL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void fork_often(int forks) {
    pthread_t busy[BUSY];
    void *block;
    int told = 0, others = 0, executed = 0;
    pthread_key_create(&key, end);
    GPU(gpu_malloc(&block, 4096));
    for (size_t i = 0; i < BUSY; i++)
        start(&busy[i], is_busy, i);
    for (int i = 0; i < forks; i++) {
        enum way way = i % 8 == 7 ? EXECUTES : i % 2 ? EXITS : LEAVES;
        int status = fork_once(block, way);
        if (status < 0) {
            printf("a child ended by a signal: %d\n", -status);
            exit(1);
        }
        if (way == EXECUTES)
            executed += status == LEAF_ENDS;
        else if (i == 0)
            told = status;
        else
            others += status != told;
    }
    atomic_store(&is_over, 1);
    for (int i = 0; i < BUSY; i++)
        pthread_join(busy[i], NULL);
    GPU(gpu_free(block));
    atomic_fetch_add(&allocations, 1);
    printf("children: %d, others %d, executed %d\n", told, others, executed);
}

int main(int argc, char **argv) {
    GPU(gpu_set_device(0));
    if (argc == 2 && !strcmp(argv[1], "leaf")) {
        for (int i = 0; i < LEAF; i++)
            pair(4096);
        return LEAF_ENDS;
    }
    if (argc == 3 && !strcmp(argv[1], "brief"))
        come_and_go(strtoul(argv[2], NULL, 10) / AT_ONCE * AT_ONCE);
    else if (argc == 3 && !strcmp(argv[1], "forks"))
        fork_often(atoi(argv[2]));
    else
        return 2;
    printf("allocations: %ld\n", atomic_load(&allocations));
    return 0;
}
