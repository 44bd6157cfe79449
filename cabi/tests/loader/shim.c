/*
 * A driver that only stands before another, as shims for virtual GPUs do: built
 * as libcuda.so.1, it opens the other, fills a table from it and hands on. It
 * looks one function up by name, and asks the resolver for the other.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

typedef int resolver(const char *, void **, int, unsigned long long, int *);

static int (*start)(unsigned);
static int (*allocate)(unsigned long long *, size_t);
static int (*release)(unsigned long long);
static resolver *resolve;

__attribute__((constructor)) static void fill(void) {
    void *other = dlopen("libcuda.so.7", RTLD_NOW);
    *(void **)&start = dlsym(other, "cuInit");
    *(void **)&allocate = dlsym(other, "cuMemAlloc_v2");
    *(void **)&resolve = dlsym(other, "cuGetProcAddress_v2");
}

int cuGetProcAddress_v2(const char *name, void **function, int version,
                        unsigned long long flags, int *status) {
    return resolve(name, function, version, flags, status);
}

int cuInit(unsigned flags) { return start(flags); }

int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    return allocate(address, size);
}

int cuMemFree_v2(unsigned long long address) {
    int status;
    if (!release)
        cuGetProcAddress_v2("cuMemFree", (void **)&release, 12000, 0, &status);
    return release(address);
}

/* What it finds if it looks up the other's function. */
void *driver_finds(void) {
    return dlsym(dlopen("libcuda.so.7", RTLD_NOLOAD | RTLD_NOW), "cuMemAlloc_v2");
}
