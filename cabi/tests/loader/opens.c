/*
 * Opens the library that it is given for itself alone, as Python does, and
 * prints what its function answers.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
    void *handle = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : 0;
    if (!handle)
        return 1;
    int (*use)(void) = (int (*)(void))dlsym(handle, "use");
    printf("%d\n", use());
    return 0;
}
