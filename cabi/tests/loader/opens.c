/*
 * Opens the libraries that it is given, each for itself alone, as Python does,
 * and prints what their functions return.
 */
#include <dlfcn.h>
#include <stdio.h>

enum { MOST = 4 };

int main(int count, char **arguments) {
    int (*use[MOST])(void);
    for (int i = 1; i < count && i <= MOST; i++) {
        void *handle = dlopen(arguments[i], RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            return 1;
        use[i - 1] = (int (*)(void))dlsym(handle, "use");
    }
    for (int i = 1; i < count && i <= MOST; i++)
        printf("%d\n", use[i - 1]());
    return count < 2;
}
