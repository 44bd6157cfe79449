/*
 * Tells what NVML says of each device that CUDA has, found by its UUID, after
 * 100 MiB were taken on the first one; and of that one again, beside what CUDA
 * says, after they were given back.
 *
 *   nvml [SOFT HARD]   sets limits in MiB on the first device before
 *   nvml bus           finds each device by what the runtimes of CUDA 12 and 13
 *                      say of its bus, as PyTorch does when memory is short
 *
 * Exit: 0 told, 1 something failed.
 */
#include "find.h"
#include "gpu.h"

enum { UUID = 80, LIMITS = 3 };
#define MEMORY_2 (2U << 24 | 40U)

typedef unsigned long long u64;

struct memory { u64 total, free, used; };
struct memory_2 { unsigned version; u64 total, reserved, free, used; };
struct limits { const char *name_space; u64 soft, hard, used; };

static void *library;

/* A function of NVML by its name, called with these types. */
#define NVML(name, parameters, ...)                                            \
    (((int(*) parameters)dlsym(library, name))(__VA_ARGS__))

static void uuid_of(int device, char *text) {
    unsigned char u[16];
    int (*ask)(void *, int);
    *(void **)&ask = find("cuDeviceGetUuid_v2");
    GPU(ask(u, device));
    char *to = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        to += sprintf(to, "%s%02x", i >= 4 && i <= 10 && i % 2 == 0 ? "-" : "",
                      u[i]);
}

static void tell(int device) {
    char uuid[UUID];
    void *handle = NULL;
    unsigned index = ~0U;
    struct memory memory = {0};
    struct memory_2 second = {.version = MEMORY_2};
    uuid_of(device, uuid);
    GPU(NVML("nvmlDeviceGetHandleByUUID", (const char *, void **), uuid,
             &handle));
    GPU(NVML("nvmlDeviceGetIndex", (void *, unsigned *), handle, &index));
    GPU(NVML("nvmlDeviceGetMemoryInfo", (void *, void *), handle, &memory));
    GPU(NVML("nvmlDeviceGetMemoryInfo_v2", (void *, void *), handle, &second));
    printf("device %d is %u: total %llu, free %llu, used %llu", device, index,
           memory.total >> 20, memory.free >> 20, memory.used >> 20);
    printf("; total %llu, free %llu, used %llu\n", second.total >> 20,
           second.free >> 20, second.used >> 20);
    second.version = 1;
    printf("another version: %d\n", NVML("nvmlDeviceGetMemoryInfo_v2",
                                         (void *, void *), handle, &second));
}

static void tell_beside_cuda(void) {
    size_t available, total;
    GPU(gpu_mem_info(&available, &total));
    printf("CUDA: total %zu, free %zu\n", total >> 20, available >> 20);
    tell(0);
}

static void limit(u64 soft, u64 hard) {
    char uuid[UUID];
    void *handle = NULL;
    uuid_of(0, uuid);
    GPU(NVML("nvmlDeviceGetHandleByUUID", (const char *, void **), uuid,
             &handle));
    struct limits wanted = {"/sys/fs/cgroup", soft << 20, hard << 20, 0};
    printf("limits: %d\n", NVML("nvmlDeviceSetMemoryLimits_v1",
                                (void *, void *), handle, &wanted));
    struct limits found = {"/sys/fs/cgroup", 1, 1, 1};
    GPU(NVML("nvmlDeviceGetMemoryLimits_v1", (void *, void *), handle, &found));
    printf("soft %llu, hard %llu, used %llu\n", found.soft >> 20,
           found.hard >> 20, found.used >> 20);
}

/* PyTorch's pattern; bus, device and domain stand side by side. */
static void find_by_bus(const char *runtime, const char *name, int bus) {
    static int properties[1024];
    void *opened = dlopen(runtime, RTLD_NOW);
    int (*tell)(void *, int);
    *(void **)&tell = opened ? dlsym(opened, name) : NULL;
    for (int device = 0; tell && !tell(properties, device); device++) {
        char text[64];
        void *handle = NULL;
        unsigned index = ~0U;
        snprintf(text, sizeof text, "%08X:%02X:%02X.0", properties[bus + 2],
                 properties[bus], properties[bus + 1]);
        int code = NVML("nvmlDeviceGetHandleByPciBusId_v2",
                        (const char *, void **), text, &handle);
        if (!code)
            GPU(NVML("nvmlDeviceGetIndex", (void *, unsigned *), handle, &index));
        printf("%s, device %d, %s: %d, index %d\n", runtime, device, text, code,
               (int)index);
    }
}

static int find_all_by_bus(void) {
    enum { BUS_IN_12 = 584 / 4, BUS_IN_13 = 568 / 4 };
    GPU(NVML("nvmlInit_v2", (void)));
    find_by_bus("libcudart.so.12", "cudaGetDeviceProperties_v2", BUS_IN_12);
    find_by_bus("libcudart.so.13", "cudaGetDeviceProperties", BUS_IN_13);
    return 0;
}

int main(int argc, char **argv) {
    void *block = NULL;
    unsigned count = 0;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no NVML: %s\n", dlerror());
        return 1;
    }
    if (argc == 2 && !strcmp(argv[1], "bus"))
        return find_all_by_bus();
    printf("before: %d\n",
           NVML("nvmlDeviceGetCount_v2", (unsigned *), &count));
    GPU(NVML("nvmlInit_v2", (void)));
    GPU(NVML("nvmlDeviceGetCount_v2", (unsigned *), &count));
    GPU(gpu_set_device(0));
    if (argc == LIMITS)
        limit(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10));
    printf("100 MiB: %d\n", gpu_malloc(&block, (size_t)100 << 20));
    for (unsigned device = 0; device < count; device++)
        tell((int)device);
    tell_beside_cuda();
    if (block)
        GPU(gpu_free(block));
    tell_beside_cuda();
    GPU(NVML("nvmlShutdown", (void)));
    return 0;
}
