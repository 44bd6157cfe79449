/*
 * A library to preload that writes down which functions a CUDA runtime asks
 * the driver for, each look-up a line of the file LOOKUPS:
 *
 *   name version flags code
 *
 * It looks and changes nothing: what is asked for is found as it would be, but
 * for the look-up functions themselves.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*resolve_1)(const char *, void **, int, uint64_t);
typedef int (*resolve_2)(const char *, void **, int, uint64_t, int *);

static resolve_1 real_1;
static resolve_2 real_2;

static void *own(const char *name, int version, void *real);

static void note(const char *name, int version, uint64_t flags, int code) {
    const char *path = getenv("LOOKUPS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s %d %llu %d\n", name, version, (unsigned long long)flags,
            code);
    fclose(file);
}

static int seen_1(const char *name, void **found, int version, uint64_t flags) {
    int code = real_1(name, found, version, flags);
    note(name, version, flags, code);
    if (!code && found)
        *found = own(name, version, *found);
    return code;
}

static int seen_2(const char *name, void **found, int version, uint64_t flags,
                  int *status) {
    int code = real_2(name, found, version, flags, status);
    note(name, version, flags, code);
    if (!code && found)
        *found = own(name, version, *found);
    return code;
}

/* The function that stands in for this one: itself, or one from above. */
static void *own(const char *name, int version, void *real) {
    if (!real || strcmp(name, "cuGetProcAddress"))
        return real;
    if (version >= 12000) {
        real_2 = (resolve_2)real;
        return (void *)seen_2;
    }
    real_1 = (resolve_1)real;
    return (void *)seen_1;
}

void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    int first = !strcmp(name, "cuGetProcAddress");
    int second = !strcmp(name, "cuGetProcAddress_v2");
    void *found = real(handle, name);
    if (first || second) {
        note(name, 0, 0, !found);
        found = own("cuGetProcAddress", second ? 12000 : 11030, found);
    }
    return found;
}
