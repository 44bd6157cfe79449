/*
 * Functions of the driver by their ABI names, for programs that need more of
 * it than gpu.h has, however they speak to CUDA otherwise.
 */
#ifndef PROGRAMS_FIND_H
#define PROGRAMS_FIND_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* NULL where this driver has no such function. */
static inline void *find_if_there(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no driver: %s\n", dlerror());
        exit(1);
    }
    return dlsym(library, name);
}

static inline void *find(const char *name) {
    void *found = find_if_there(name);
    if (!found) {
        fprintf(stderr, "the driver lacks %s\n", name);
        exit(1);
    }
    return found;
}

#endif
