/*
 * Looks everything up once more, by the next in line, from a constructor and
 * whenever a library is opened: what must be found from here is what comes
 * behind this library, and nothing may call back into it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

static int depth;

void *dlopen(const char *file, int mode) {
    static void *(*real)(const char *, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    if (++depth > 64)
        abort();
    void *handle = real(file, mode);
    for (int again = 0; handle && again < 3; again++) {
        dlsym(handle, "cuMemAlloc_v2");
        dlsym(RTLD_NEXT, "cuMemAlloc_v2");
        dlsym(NULL, "cuMemFree_v2");
    }
    depth--;
    return handle;
}

__attribute__((constructor)) static void look_ahead(void) {
    void *(*real)(const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    if (!real || real == dlopen)
        abort();
}
