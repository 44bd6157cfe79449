/*
 * A driver of a few functions, for tests of the dynamic linker alone:
 * built as libcuda.so.1, or as NAME. It looks itself up, as the real one does,
 * and its resolver gives some functions at addresses that are not exported.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#ifndef NAME
#define NAME "libcuda.so.1"
#endif

int cuInit(unsigned flags) { return (int)flags; }

int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    (void)address;
    return (int)size;
}

int cuMemFree_v2(unsigned long long address) { return (int)address; }

static int release(unsigned long long address) { return (int)address; }

int cuCtxCreate_v3(void **context, void *affinity, int count, unsigned flags,
                   int device) {
    (void)context, (void)affinity, (void)count, (void)flags;
    return device;
}

static int newer(void **context, void *affinity, int count, unsigned flags,
                 int device) {
    return cuCtxCreate_v3(context, affinity, count, flags, device);
}

int cuCtxCreate_v4(void **context, void *parameters, unsigned flags, int device) {
    (void)context, (void)parameters, (void)flags;
    return device;
}

static int newest(void **context, void *parameters, unsigned flags, int device) {
    return cuCtxCreate_v4(context, parameters, flags, device);
}

int cuGetProcAddress_v2(const char *name, void **function, int version,
                        unsigned long long flags, int *status) {
    (void)flags;
    void *self = dlopen(NAME, RTLD_NOLOAD | RTLD_NOW);
    const char *found = strcmp(name, "cuMemAlloc") == 0         ? "cuMemAlloc_v2"
                        : strcmp(name, "cuGetProcAddress") == 0 && version >= 12000
                            ? "cuGetProcAddress_v2"
                                                                : name;
    if (version > 13000)
        return 1;
    if (strcmp(name, "cuCtxCreate") == 0)
        *function = version >= 12050 ? (void *)newest : (void *)newer;
    else if (strcmp(name, "cuMemFree") == 0)
        *function = (void *)release;
    else
        *function = dlsym(self, found);
    *status = *function == NULL;
    return 0;
}

/* What the driver finds if it looks up its own function. */
void *driver_finds(void) {
    void *self = dlopen(NAME, RTLD_NOLOAD | RTLD_NOW);
    return dlsym(self, "cuMemAlloc_v2");
}
