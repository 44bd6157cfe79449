/*
 * Does a runtime that is opened with RTLD_DEEPBIND look past preloaded
 * libraries? Allocates and frees by it; who served that is for the one to see
 * who preloaded something.
 */
#define _GNU_SOURCE
#include "facts.h"

#include <dlfcn.h>

enum { BLOCKS = 100 };

int main(void) {
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12",
                                        "libcudart.so"};
    void *library = NULL, *blocks[BLOCKS];
    for (int i = 0; i < 3 && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    fact(library != NULL, "deepbind.opened");
    if (!library)
        return 0;
    int (*allocate)(void **, size_t) =
        (int (*)(void **, size_t))dlsym(library, "cudaMalloc");
    int (*release)(void *) = (int (*)(void *))dlsym(library, "cudaFree");
    for (int i = 0; i < BLOCKS; i++)
        GPU(allocate(&blocks[i], 1 << 16));
    for (int i = 0; i < BLOCKS; i++)
        GPU(release(blocks[i]));
    fact(BLOCKS, "deepbind.blocks");
    return 0;
}
