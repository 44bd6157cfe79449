/*
 * A driver of four functions, for what concerns the dynamic linker alone:
 * built as libcuda.so.1. It looks itself up, as the real one does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

int cuInit(unsigned flags) { return (int)flags; }

int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    (void)address;
    return (int)size;
}

int cuGetProcAddress_v2(const char *name, void **function, int version,
                        unsigned long long flags, int *status) {
    (void)flags;
    void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    const char *found = strcmp(name, "cuMemAlloc") == 0         ? "cuMemAlloc_v2"
                        : strcmp(name, "cuGetProcAddress") == 0 ? "cuGetProcAddress_v2"
                                                                : name;
    if (version > 13000)
        return 1;
    *function = dlsym(self, found);
    *status = *function == NULL;
    return 0;
}

/* What the driver finds where it asks for its own function. */
void *driver_finds(void) {
    void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    return dlsym(self, "cuMemAlloc_v2");
}
