/*
 * A preload that exports a dlsym of its own, which calls the next one: names
 * that begin with "wrapped_" are found without their first eight letters.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

typedef void *look_up(void *, const char *);

void *dlsym(void *handle, const char *name) {
    static look_up *next;
    if (next == NULL)
        next = (look_up *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return next(handle, strncmp(name, "wrapped_", 8) == 0 ? name + 8 : name);
}
