/*
 * A driver that only stands before another, as shims for virtual GPUs do: each
 * function jumps to the other's of that name, found when the driver is loaded.
 * The list of names is made by whoever builds this.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

enum {
#define NAME(name) number_of_##name,
#include "names.h"
#undef NAME
    COUNT
};

__attribute__((used)) static void *driver_table[COUNT];

#define NAME(name)                                                             \
    __attribute__((naked)) void name(void) {                                   \
        __asm__("jmp *driver_table + 8 * %c0(%%rip)" ::"i"(number_of_##name)); \
    }
#include "names.h"
#undef NAME

__attribute__((constructor)) static void fill(void) {
    static const char *const names[] = {
#define NAME(name) #name,
#include "names.h"
#undef NAME
    };
    void *other = dlopen("libcuda.so.2", RTLD_NOW);
    if (!other)
        abort();
    for (int i = 0; i < COUNT; i++)
        driver_table[i] = dlsym(other, names[i]);
}
