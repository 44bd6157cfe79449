/*
 * Looks functions up in every way that programs do, again and again, and asks
 * where things lie: what is found, or not, is what it is without anything
 * between the program and CUDA; each look-up gives what the first gave; and
 * what was found works.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include "find.h"

typedef unsigned long long address;

static const char *const names[] = {
    "cuMemAlloc_v2", "cuMemAlloc", "cuMemFree_v2", "cuInit", "cuMemAllocAsync",
    "cuStreamBeginCapture_v2", "cuNoSuchFunction", "cudaMalloc", "malloc", "",
};

/* The file's name, without its version, of the first mapping whose path contains
 * `part`, as some programs look for the runtime. */
static void first_mapped(const char *part) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char *name = strrchr(line, '/');
        if (name && strstr(line, part)) {
            char *version = strstr(name, ".so");
            if (version)
                version[3] = 0;
            printf("first with %s: %s\n", part, name + 1);
            break;
        }
    }
    if (maps)
        fclose(maps);
}

static void try_handle(const char *what, void *handle) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        dlerror();
        void *first = dlsym(handle, names[i]);
        int told = dlerror() != NULL, same = 0;
        for (int again = 0; again < 50; again++)
            same += dlsym(handle, names[i]) == first;
        printf("%s, %s: %s, error %d, the same %d\n", what, names[i],
               first ? "found" : "none", told, same);
    }
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *again = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    /* Its symbols have its name for their version. */
    const char *runtime = "libcudart.so.12";
    void *shared = dlopen(runtime, RTLD_NOW | RTLD_LOCAL);
    if (!shared)
        shared = dlopen(runtime = "libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!driver || !again || !shared) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    try_handle("driver", driver);
    try_handle("driver again", again);
    try_handle("runtime", shared);
    printf("own version: %d\n",
           dlvsym(shared, "cudaMalloc", runtime) != NULL);
    printf("another version: %d\n",
           dlvsym(shared, "cudaMalloc", "libcudart.so.99") != NULL);
    first_mapped("libcudart");
    first_mapped("libcuda.so");

    /* In one order and in the other. */
    int (*allocate)(address *, size_t) = NULL;
    int (*release)(address) = NULL;
    address at = 0;
    GPU(gpu_set_device(0));
    *(void **)&release = dlsym(again, "cuMemFree_v2");
    *(void **)&allocate = dlsym(driver, "cuMemAlloc_v2");
    for (int round = 0; round < 100; round++) {
        GPU(allocate(&at, 1 << 20));
        GPU(release(at));
    }
    printf("a second free: %d\n", release(at));
    return 0;
}
