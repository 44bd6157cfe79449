/*
 * Processes that come from one that uses CUDA: children that leave at once by
 * every way out, that free and allocate where CUDA refuses them, that execute
 * another CUDA program; grandchildren. The parent goes on undisturbed.
 *
 *   forks          all of that
 *   forks leaf     allocates a little and ends
 *   forks early    sets a limit of 1 GiB and uses no CUDA: its children do, and
 *                  theirs
 *   forks prepare  as early, and a handler of the program's forks before the fork
 *   forks child    the same with one that forks in the child
 *   forks many     four threads fork at once, and each child uses the API; then
 *                  with a lock of the program's around fork and API
 *   forks beside   the same many times, while another thread reads options and
 *                  writes the statistics
 */
#define _GNU_SOURCE
#include "api.h"
#include "gpu.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 8, SIZE = 1 << 20 };

static void *blocks[BLOCKS];
static char *program;

static int leaf(void) {
    void *block;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, SIZE));
    GPU(gpu_free(block));
    return 11;
}

static void exits(void) { exit(1); }
static void exits_quickly(void) { _exit(2); }
static void is_killed(void) { raise(SIGKILL); }

/* CUDA is of no use here; what it answers goes to the parent. */
static void uses_cuda(void) {
    void *block = NULL;
    int freed = gpu_free(blocks[0]);
    int made = gpu_malloc(&block, SIZE);
    exit(freed || made ? 3 : 0);
}

static void executes(void) {
    execl(program, program, "leaf", (char *)NULL);
    _exit(100);
}

static void forks_again(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        exit(4);
    if (child < 0 || waitpid(child, &status, 0) != child)
        _exit(101);
    exit(WEXITSTATUS(status) + 1);
}

static void try_child(const char *what, void (*body)(void)) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        body();
        _exit(102);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        exit(1);
    printf("%s: %d\n", what,
           WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    fflush(stdout);
}

/* What it gets below the limit, and beyond. */
static void begins(void) {
    void *block = NULL;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, SIZE));
    int beyond = gpu_malloc(&block, (size_t)2 << 30);
    /* A scope that a thread of the library ends. */
    vramalloc_scope scope;
    uint64_t released;
    API(api.scope_begin(&scope));
    API(api.malloc(SIZE, 0, &block));
    API(api.scope_end(scope));
    API(api.empty_cache(0, &released));
    exit(beyond);
}

static void child_begins(void) { try_child("a grandchild begins", begins); }

static int early(void) {
    api_load();
    API(api.ctl("option.limit", "1G", NULL, 0, NULL));
    try_child("begins", begins);
    try_child("has a child", child_begins);
    return 0;
}

static int has_forked;

/* Another process goes on with the same fork as this one. */
static void fork_within(void) {
    int status = 0;
    if (has_forked)
        return;
    has_forked = 1;
    pid_t other = fork();
    if (other > 0)
        waitpid(other, &status, 0);
}

static void fork_in_child(void) {
    int status = 0;
    if (has_forked)
        return;
    has_forked = 1;
    pid_t other = fork();
    if (other > 0 && waitpid(other, &status, 0) == other)
        _exit(WEXITSTATUS(status));
}

/* Its handlers are there before the library's. */
static int nested(int is_in_child) {
    if (is_in_child)
        pthread_atfork(NULL, NULL, fork_in_child);
    else
        pthread_atfork(fork_within, NULL, NULL);
    api_load();
    API(api.ctl("option.limit", "1G", NULL, 0, NULL));
    try_child("begins", begins);
    return 0;
}

static void *reads(void *unused) {
    char text[32];
    for (;;) {
        API(api.ctl("option.limit", NULL, text, sizeof text, NULL));
        API(api.ctl("dump", "/dev/null", NULL, 0, NULL));
    }
    return unused;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_locked;

static void take_lock(void) {
    if (is_locked)
        pthread_mutex_lock(&lock);
}

static void leave_lock(void) {
    if (is_locked)
        pthread_mutex_unlock(&lock);
}

static void *forks_often(void *bad) {
    for (int i = 0; i < 50; i++) {
        int status = 1;
        pid_t child = fork();
        if (!child) {
            char text[32];
            alarm(10);
            _exit(api.ctl("option.limit", NULL, text, sizeof text, NULL) != 0);
        }
        waitpid(child, &status, 0);
        __atomic_fetch_add((int *)bad, status != 0, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *reads_locked(void *unused) {
    char text[32];
    for (;;) {
        pthread_mutex_lock(&lock);
        API(api.ctl("option.limit", NULL, text, sizeof text, NULL));
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

static int many(void) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS], reader;
    int bad = 0;
    /* Before the library has handlers: its own come first at a fork. */
    pthread_atfork(take_lock, leave_lock, leave_lock);
    api_load();
    API(api.ctl("option.limit", "1G", NULL, 0, NULL));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, forks_often, &bad);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("bad: %d\n", bad);
    is_locked = 1;
    pthread_create(&reader, NULL, reads_locked, NULL);
    forks_often(&(int){0});
    printf("no deadlock\n");
    return 0;
}

static int beside(void) {
    pthread_t thread;
    vramalloc_scope scope;
    api_load();
    API(api.ctl("option.limit", "1G", NULL, 0, NULL));
    API(api.ctl("option.eager_delete_scope", "False", NULL, 0, NULL));
    API(api.scope_begin(&scope));
    API(api.scope_end(scope));
    pthread_create(&thread, NULL, reads, NULL);
    for (int i = 0; i < 20; i++)
        try_child("begins", begins);
    return 0;
}

int main(int argc, char **argv) {
    int right = 0;
    if (argc == 2 && !strcmp(argv[1], "leaf"))
        return leaf();
    if (argc == 2 && !strcmp(argv[1], "early"))
        return early();
    if (argc == 2 && !strcmp(argv[1], "prepare"))
        return nested(0);
    if (argc == 2 && !strcmp(argv[1], "child"))
        return nested(1);
    if (argc == 2 && !strcmp(argv[1], "many"))
        return many();
    if (argc == 2 && !strcmp(argv[1], "beside"))
        return beside();
    program = realpath("/proc/self/exe", NULL);
    GPU(gpu_set_device(0));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        GPU(gpu_malloc(&blocks[i], SIZE));
        GPU(gpu_copy_in(blocks[i], &i, sizeof i));
    }
    try_child("exits", exits);
    try_child("exits quickly", exits_quickly);
    try_child("is killed", is_killed);
    try_child("uses CUDA", uses_cuda);
    try_child("executes", executes);
    try_child("forks again", forks_again);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t word = ~i;
        GPU(gpu_copy_out(&word, blocks[i], sizeof word));
        right += word == i;
        GPU(gpu_free(blocks[i]));
    }
    printf("the parent's: %d right\n", right);
    free(program);
    return 0;
}
