/*
 * Ends in the ways a process can end, with memory live.
 *
 *   exit_paths return|exit|_exit|abort|limited|atexit|destructor|racing|fork
 *   exit_paths paced      with much to be told, while a thread asks for a little
 *                         each two milliseconds
 *   exit_paths joined     a thread frees all of it, which an exit handler waits for
 *   exit_paths handled    an exit handler frees all, beside a thread that sleeps
 *   exit_paths handler    in a signal handler that has a small stack of its own
 *   exit_paths narrow     in a thread with a small stack
 *   exit_paths pending    in a thread whose cancellation is pending
 *   exit_paths alarmed    a signal handler ends it while it ends, beside a thread
 *   exit_paths alone      the same without one
 *   exit_paths closed     where standard output is closed, and printed to
 *   exit_paths first      the first thread ends, and the others after it
 *   exit_paths crowded    where the system gives no more memory
 *   exit_paths moved      in another folder than it was started in
 *   exit_paths reset      the device is reset in an exit handler
 *   exit_paths released   its primary context is released there, as the
 *                         runtime 10.2 does
 *
 * What late frees answer differs between runtimes and is not printed; that
 * they return at all is the point.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include "find.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 16 };

static void *blocks[BLOCKS];
static int free_in_destructor;

static void allocate_all(void) {
    GPU(gpu_set_device(0));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_malloc(&blocks[i], (size_t)4096 << i));
    for (int i = 0; i < BLOCKS; i += 3) {
        GPU(gpu_free(blocks[i]));
        blocks[i] = NULL;
    }
}

static void free_all(void) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i])
            gpu_free(blocks[i]);
}

/* By the driver: of this thread's context it need not know any more. */
static void reset(void) {
    int (*reset_device)(int);
    *(void **)&reset_device = find("cuDevicePrimaryCtxReset_v2");
    reset_device(0);
}

/* Until nobody holds it any more. */
static void release(void) {
    int (*release_once)(int);
    int (*state)(int, unsigned *, int *);
    unsigned flags;
    int active = 1;
    *(void **)&release_once = find("cuDevicePrimaryCtxRelease_v2");
    *(void **)&state = find("cuDevicePrimaryCtxGetState");
    while (active && release_once(0) == 0)
        state(0, &flags, &active);
}

__attribute__((destructor)) static void at_unload(void) {
    if (free_in_destructor)
        free_all();
}

/* Allocates and frees until the process is gone. */
static void *race(void *started) {
    void *block;
    gpu_set_device(0);
    for (int round = 0;; round++) {
        if (gpu_malloc(&block, (size_t)(round % 64 + 1) << 12) == 0)
            gpu_free(block);
        if (round == 100)
            __atomic_store_n((int *)started, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static int end_racing(void) {
    static int started[2];
    pthread_t thread;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread, NULL, race, &started[i]))
            return 1;
    while (!__atomic_load_n(&started[0], __ATOMIC_ACQUIRE) ||
           !__atomic_load_n(&started[1], __ATOMIC_ACQUIRE))
        usleep(100);
    exit(0);
}

/* Says the first failure, which a thread has that still asks when CUDA ends. */
static void *ask(void *asked) {
    void *block;
    int code = 0;
    for (gpu_set_device(0); !code; usleep(2000)) {
        code = gpu_malloc(&block, 4096);
        if (!code)
            code = gpu_free(block);
        __atomic_store_n((int *)asked, 1, __ATOMIC_RELEASE);
    }
    dprintf(STDOUT_FILENO, "failed: %d\n", code);
    return NULL;
}

static int end_paced(void) {
    enum { MANY = 30000 };
    static int asked;
    pthread_t thread;
    void *block;
    for (int i = 0; i < MANY; i++)
        GPU(gpu_malloc(&block, (size_t)(i % 100 + 1) << 9));
    if (pthread_create(&thread, NULL, ask, &asked))
        return 1;
    while (!__atomic_load_n(&asked, __ATOMIC_ACQUIRE))
        usleep(100);
    return 0;
}

static pthread_t other;
static int is_ready, is_to_free;

static void *free_when_told(void *nothing) {
    gpu_set_device(0);
    __atomic_store_n(&is_ready, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&is_to_free, __ATOMIC_ACQUIRE))
        usleep(100);
    free_all();
    return nothing;
}

static void join_other(void) {
    __atomic_store_n(&is_to_free, 1, __ATOMIC_RELEASE);
    pthread_join(other, NULL);
}

/* Before the first request, so that it runs late, and while the driver is there. */
static int end_with(void (*handler)(void)) {
    GPU(gpu_set_device(0));
    atexit(handler);
    allocate_all();
    if (pthread_create(&other, NULL, free_when_told, NULL))
        return 1;
    while (!__atomic_load_n(&is_ready, __ATOMIC_ACQUIRE))
        usleep(100);
    return 0;
}

enum { SMALL_STACK = 32 << 10, PAGE = 4096 };

static void end_in_handler(int signal) {
    (void)signal;
    exit(8);
}

/* Nothing may be touched below it. */
static int end_handling(void) {
    char *room = aligned_alloc(PAGE, PAGE + SMALL_STACK);
    if (!room || mprotect(room, PAGE, PROT_NONE))
        return 1;
    stack_t stack = {.ss_sp = room + PAGE, .ss_size = SMALL_STACK};
    struct sigaction action = {.sa_handler = end_in_handler, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL))
        return 1;
    return raise(SIGUSR1);
}

/* Beside a thread, so that the end has work before the last exit handlers; or after them. */
static int end_alarmed(int is_alone) {
    enum { SOON_US = 300 };
    struct sigaction action = {.sa_handler = end_in_handler};
    struct itimerval soon = {.it_value = {.tv_usec = SOON_US}};
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    if (!is_alone && pthread_create(&other, NULL, free_when_told, NULL))
        return 1;
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    while (!is_alone && !__atomic_load_n(&is_ready, __ATOMIC_ACQUIRE))
        usleep(100);
    if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &soon, NULL))
        return 1;
    return 0;
}

/* To a number that it has closed, as a daemon's library may. */
static void *print_ever(void *printing) {
    for (;;) {
        if (write(STDOUT_FILENO, "printed\n", 8) < 0)
            __atomic_store_n((int *)printing, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static int end_closed(void) {
    enum { MANY = 30000 };
    static int printing;
    pthread_t thread;
    void *block;
    allocate_all();
    close(STDOUT_FILENO);
    if (pthread_create(&thread, NULL, print_ever, &printing))
        return 1;
    while (!__atomic_load_n(&printing, __ATOMIC_ACQUIRE))
        usleep(100);
    for (int i = 0; i < MANY; i++)
        GPU(gpu_malloc(&block, (size_t)(i % 100 + 1) << 9));
    return 0;
}

/* The process ends with its last thread, and handlers have as much stack as in any. */
static void *work_a_little(void *nothing) {
    void *pinned;
    GPU(gpu_set_device(0));
    GPU(gpu_host_alloc(&pinned, 4096, 0));
    GPU(gpu_free_host(pinned));
    usleep(100 * 1000);
    return nothing;
}

static void need_stack(void) {
    enum { MUCH = 1 << 20 };
    volatile char much[MUCH];
    for (int i = 0; i < MUCH; i += PAGE)
        much[i] = 1;
    (void)much[0];
}

static int end_first(void) {
    pthread_t thread;
    allocate_all();
    if (atexit(need_stack) || pthread_create(&thread, NULL, work_a_little, NULL) ||
        pthread_detach(thread))
        return 1;
    pthread_exit(NULL);
}

static void *end_there(void *nothing) {
    (void)nothing;
    exit(8);
}

static void *end_cancelled(void *nothing) {
    (void)nothing;
    pthread_cancel(pthread_self());
    exit(8);
}

static int end_in(void *(*body)(void *)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, NULL))
        return 1;
    for (;;)
        pause();
}

static int end_narrowly(void) {
    pthread_attr_t narrow;
    pthread_t thread;
    pthread_attr_init(&narrow);
    if (pthread_attr_setstacksize(&narrow, SMALL_STACK) ||
        pthread_create(&thread, &narrow, end_there, NULL))
        return 1;
    for (;;)
        pause();
}

/* The child, which must not use CUDA, ends through every exit handler. */
static int end_forked(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        exit(7);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    printf("child: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    free_all();
    return 0;
}

int main(int argc, char **argv) {
    const char *how = argc == 2 ? argv[1] : "";
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (!strcmp(how, "atexit"))
        atexit(free_all);
    if (!strcmp(how, "joined"))
        return end_with(join_other);
    if (!strcmp(how, "handled"))
        return end_with(free_all);
    if (!strcmp(how, "closed"))
        return end_closed();
    if (!strcmp(how, "first"))
        return end_first();
    if (!strcmp(how, "moved") && chdir("/proc"))
        return 1;
    allocate_all();
    if (!strcmp(how, "renamed") && rename("../start", "../end"))
        return 1;
    if (!strcmp(how, "removed") &&
        (rmdir("../start") || mkdir("../start", 0777)))
        return 1;
    if (!strcmp(how, "rooted") && chroot("."))
        return 1;
    /* After the driver has put its own end on the list, so that they run
     * before it. */
    if (!strcmp(how, "reset"))
        atexit(reset);
    if (!strcmp(how, "released"))
        atexit(release);
    printf("ending by %s\n", how);
    fflush(stdout);
    if (!strcmp(how, "return") || !strcmp(how, "atexit") ||
        !strcmp(how, "moved") || !strcmp(how, "renamed") ||
        !strcmp(how, "removed") ||
        !strcmp(how, "rooted") || !strcmp(how, "reset") || !strcmp(how, "released"))
        return 0;
    if (!strcmp(how, "exit"))
        exit(3);
    if (!strcmp(how, "_exit"))
        _exit(4);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "terminated"))
        raise(SIGTERM);
    if (!strcmp(how, "quick_exit"))
        quick_exit(6);
    if (!strcmp(how, "killed")) {
        /* Long enough for whatever is written each second. */
        usleep(2500 * 1000);
        raise(SIGKILL);
    }
    if (!strcmp(how, "limited")) {
        /* No file may have more than a page from now on. */
        struct rlimit page = {4096, 4096};
        setrlimit(RLIMIT_FSIZE, &page);
        return 0;
    }
    if (!strcmp(how, "crowded")) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_AS, &none);
        return 0;
    }
    if (!strcmp(how, "destructor")) {
        free_in_destructor = 1;
        return 5;
    }
    if (!strcmp(how, "racing"))
        return end_racing();
    if (!strcmp(how, "handler"))
        return end_handling();
    if (!strcmp(how, "alarmed"))
        return end_alarmed(0);
    if (!strcmp(how, "alone"))
        return end_alarmed(1);
    if (!strcmp(how, "pending"))
        return end_in(end_cancelled);
    if (!strcmp(how, "narrow"))
        return end_narrowly();
    if (!strcmp(how, "paced"))
        return end_paced();
    if (!strcmp(how, "fork"))
        return end_forked();
    fprintf(stderr,
            "usage: exit_paths return|exit|_exit|quick_exit|abort|terminated|"
            "killed|limited|crowded|atexit|moved|renamed|removed|rooted|destructor|reset|released|racing|"
            "handler|narrow|pending|alarmed|alone|closed|first|paced|joined|handled|fork\n");
    return 2;
}
