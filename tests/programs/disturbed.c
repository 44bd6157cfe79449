/*
 * Disturbs how others see it, in the way that its argument says.
 *
 *   before     sandboxes itself, and then takes memory
 *   after      takes memory, sandboxes itself, and takes more
 *   strict     the same, where no file can be opened from then on
 *   sealed     the same, in all threads, and lives for two seconds more
 *   copy       makes a copy of itself that has the same process number, in a
 *              namespace of its own, and ends that
 *   leader     takes memory, ends its first thread, and takes more in another
 *   idle       takes memory, with much that each thread has, and lives for two
 *              seconds
 *   dump FILE  lets another thread write the statistics to this file, takes
 *              memory meanwhile, and says so
 */
#define _GNU_SOURCE
#include "api.h"
#include "gpu.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* It lies at the foot of each thread's stack, also of the library's. */
static _Thread_local volatile char much[1 << 20];

static void take(size_t mib) {
    void *block;
    size_t available, total;
    GPU(gpu_malloc(&block, mib << 20));
    GPU(gpu_mem_info(&available, &total));
    printf("took %zu MiB\n", mib);
    fflush(stdout);
}

/* Calls that the program itself does not make end it; if it is strict, those too
 * that whoever writes a file makes. */
static void sandbox(int is_strict, unsigned flags) {
    enum { OF_FILES = 7 };
    const int deadly[] = {SYS_flock, SYS_mkdirat, SYS_unlinkat, SYS_fallocate,
                          SYS_process_vm_readv, SYS_process_vm_writev,
                          SYS_openat, SYS_statx, SYS_newfstatat, SYS_readlink,
                          SYS_readlinkat, SYS_poll, SYS_rt_sigprocmask};
    const int all = sizeof deadly / sizeof *deadly;
    const int count = is_strict ? all : all - OF_FILES;
    struct sock_filter code[2 * sizeof deadly / sizeof *deadly + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    struct sock_filter *next = code + 1;
    for (int i = 0; i < count; i++) {
        *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                               (unsigned)deadly[i], 0, 1);
        *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
                                               SECCOMP_RET_KILL_PROCESS);
    }
    *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)(next - code), code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program))
        perror("seccomp");
}

static void copy(void) {
    int status = -1;
    void *block;
    take(100);
    if (unshare(CLONE_NEWPID)) {
        perror("unshare");
        exit(1);
    }
    fflush(stdout);
    int child = (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        gpu_malloc(&block, 3 << 20);
        exit(0);
    }
    waitpid(child, &status, 0);
    printf("the copy ended: %x\n", (unsigned)status);
}

static void *dump(void *file) {
    api.ctl("dump", file, NULL, 0, NULL);
    return NULL;
}

static void take_while_dumping(char *file) {
    pthread_t thread;
    take(3);
    api_load();
    pthread_create(&thread, NULL, dump, file);
    /* Until the test has had its answer. */
    while (getchar() != EOF)
        take(3);
    _exit(0);
}

static void *go_on(void *first) {
    pthread_join(*(pthread_t *)first, NULL);
    GPU(gpu_set_device(0));
    take(100);
    getchar();
    exit(0);
}

static void end_leader(void) {
    static pthread_t first;
    pthread_t other;
    first = pthread_self();
    take(3);
    pthread_create(&other, NULL, go_on, &first);
    pthread_exit(NULL);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    GPU(gpu_set_device(0));
    if (!strcmp(how, "before")) {
        sandbox(0, 0);
        take(3);
    } else if (!strcmp(how, "after")) {
        take(3);
        sandbox(0, 0);
        take(100);
    } else if (!strcmp(how, "strict")) {
        take(3);
        sandbox(1, 0);
        take(100);
    } else if (!strcmp(how, "sealed")) {
        take(3);
        sandbox(1, SECCOMP_FILTER_FLAG_TSYNC);
        sleep(2);
        take(100);
    } else if (!strcmp(how, "idle")) {
        much[0] = 1;
        take(3);
        sleep(2);
    } else if (!strcmp(how, "copy")) {
        copy();
        fflush(stdout);
        getchar();
    } else if (!strcmp(how, "leader")) {
        end_leader();
    } else if (argc > 2) {
        take_while_dumping(argv[2]);
    }
    return 0;
}
