/*
 * Asks NVML about memory and never uses CUDA, as a monitoring program does.
 *
 * Exit: 0 told, 1 something failed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>

typedef unsigned long long u64;

#define MEMORY_2 (2U << 24 | 40U)
#define WANT(call)                                                             \
    do {                                                                       \
        int code = (call);                                                     \
        if (code) {                                                            \
            printf("%s: %d\n", #call, code);                                   \
            return 1;                                                          \
        }                                                                      \
    } while (0)

struct memory { u64 total, free, used; };
struct memory_2 { unsigned version; u64 total, reserved, free, used; };

static void *from;

#define NVML(name, parameters, ...)                                            \
    (((int(*) parameters)dlsym(from, name))(__VA_ARGS__))

static int tell(unsigned index) {
    void *device;
    struct memory one;
    struct memory_2 two = {.version = MEMORY_2};
    WANT(NVML("nvmlDeviceGetHandleByIndex_v2", (unsigned, void **), index,
              &device));
    WANT(NVML("nvmlDeviceGetMemoryInfo", (void *, void *), device, &one));
    WANT(NVML("nvmlDeviceGetMemoryInfo_v2", (void *, void *), device, &two));
    printf("%u: total %llu, free %llu, used %llu; total %llu, reserved %llu, "
           "free %llu, used %llu\n",
           index, one.total >> 20, one.free >> 20, one.used >> 20,
           two.total >> 20, two.reserved >> 20, two.free >> 20, two.used >> 20);
    return 0;
}

int main(void) {
    printf("before: %d\n", !!dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo"));
    from = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!from) {
        fprintf(stderr, "no NVML: %s\n", dlerror());
        return 1;
    }
    WANT(NVML("nvmlInit_v2", (void)));
    if (tell(0) || tell(1))
        return 1;
    /* A look-up in everything that is there, too. */
    from = RTLD_DEFAULT;
    if (tell(0))
        return 1;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    printf("driver: %d\n", !!cuda);
    return 0;
}
