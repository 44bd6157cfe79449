/* Wraps the runtime's functions by their names and the next in line, as small
 * counting shims do. They look at what came of it, so each call returns to
 * them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

unsigned long counts_allocations, counts_frees, counts_failures;

static int counted(int code) {
    __atomic_add_fetch(&counts_failures, code != 0, __ATOMIC_RELAXED);
    return code;
}

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

int cudaMalloc(void **device, size_t size) {
    static int (*real)(void **, size_t);
    if (!real)
        *(void **)&real = next("cudaMalloc");
    __atomic_add_fetch(&counts_allocations, 1, __ATOMIC_RELAXED);
    return counted(real ? real(device, size) : 35);
}

int cudaFree(void *device) {
    static int (*real)(void *);
    if (!real)
        *(void **)&real = next("cudaFree");
    __atomic_add_fetch(&counts_frees, 1, __ATOMIC_RELAXED);
    return counted(real ? real(device) : 35);
}
