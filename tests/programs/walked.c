/*
 * The stack, walked at every instruction of a request, as a profiler's signal
 * may come at any: how many walks did not reach the caller of the function that
 * asks for memory.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>

enum { DEEP = 64, NEAR = 16 };

static char *door;
static void *outermost;
static volatile int walks, broken;

static void walk(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    char *at = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    void *frames[DEEP];
    if (at < door || at >= door + NEAR)
        return;
    int found = 0, count = backtrace(frames, DEEP);
    for (int i = 0; i < count; i++)
        found |= frames[i] == outermost;
    walks++;
    broken += !found;
}

static void step(int on) {
    if (on)
        __asm__ volatile("pushf; orl $0x100, (%%rsp); popf" ::: "memory", "cc");
    else
        __asm__ volatile("pushf; andl $~0x100, (%%rsp); popf" ::: "memory", "cc");
}

/* The stack's red zone would be written over. */
__attribute__((noinline, noclone)) static void ask(int stepping) {
    char reserved[256];
    void *block = NULL;
    memset(reserved, 0, sizeof reserved);
    __asm__ volatile("" : : "r"(reserved) : "memory");
    outermost = __builtin_return_address(0);
    if (stepping)
        step(1);
    int code = gpu_malloc(&block, 4096);
    if (stepping)
        step(0);
    GPU(code);
    GPU(gpu_free(block));
}

int main(void) {
    struct sigaction action = {.sa_sigaction = walk, .sa_flags = SA_SIGINFO};
    void *frames[DEEP];
    GPU(gpu_set_device(0));
    /* Loads what it needs. */
    if (backtrace(frames, DEEP) < 1 || sigaction(SIGTRAP, &action, NULL))
        return 1;
#ifdef USE_DRIVER
    door = (char *)(void *)gpu_driver.cuMemAlloc;
#else
    door = (char *)(void *)cudaMalloc;
#endif
    for (int i = 0; i < 10; i++)
        ask(0);
    ask(1);
    printf("walks: %s, cut short: %d\n", walks ? "some" : "none", broken);
    return 0;
}
