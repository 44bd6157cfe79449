/*
 * A preload that wraps a runtime's function by the next in line, and does
 * something after it. A call that comes back to it from inside gets an error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

int cudaMalloc(void **address, unsigned long size) {
    static int inside;
    int (*next)(void **, unsigned long);
    *(void **)&next = dlsym(RTLD_NEXT, "cudaMalloc");
    if (inside++)
        return 999;
    int code = next ? next(address, size) : 35;
    inside--;
    return code;
}
