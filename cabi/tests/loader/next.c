/*
 * A preload that stands between a program and libc, and finds the next one in
 * line by RTLD_NEXT, as such libraries do: isatty returns 1000 more.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

int isatty(int file) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "isatty");
    return next == isatty ? -1 : next(file) + 1000;
}
