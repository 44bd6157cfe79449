/*
 * A simulated libnvidia-ml.so.1 for tests: the devices of the simulated driver
 * as monitoring tools and frameworks see them.
 *
 * What is in use is asked of the simulated driver in the same process, where
 * one is loaded; otherwise everything is free. The devices are described by
 * the driver's own variables (SIM_CUDA_DEVICES, SIM_CUDA_MEMORY,
 * SIM_CUDA_VERSION, SIM_CUDA_SOFT_LIMIT, SIM_CUDA_HARD_LIMIT); further ones:
 *
 *   SIM_CUDA_NVML_REVERSED=1  the order of the devices is the reverse of
 *                             CUDA's: whoever matches them by index fails
 *   SIM_CUDA_NVML_ROOT=1      limits can be set: this process may do it
 *   SIM_CUDA_NVML_USED        so much of each device others have
 *
 * Invariant: a handle is the place of a device in CUDA's order. Not modelled:
 * MIG, links between devices, other processes one by one, and limits by cgroup:
 * every name of one stands for the process's own.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned long long u64;
typedef struct device {
    u64 soft, hard;
} *nvmlDevice_t;

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999,
} nvmlReturn_t;

enum { MOST_DEVICES = 64 };
#define NO_LIMIT UINT64_MAX

typedef struct { u64 total, free, used; } nvmlMemory_t;
typedef struct {
    unsigned version;
    u64 total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
} nvmlPciInfo_t;
typedef struct {
    const char *name_space;
    u64 soft, hard;
} nvmlSetMemoryLimits_v1_t;
typedef struct {
    const char *name_space;
    u64 soft, hard, used;
} nvmlGetMemoryLimits_v1_t;
typedef struct {
    unsigned pid;
    u64 used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;
typedef struct {
    unsigned pid;
    u64 used;
} nvmlProcessInfo_v1_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users, count;
static u64 memory;
static struct device devices[MOST_DEVICES];

/* A size as the driver reads it: a number and K, M or G. */
static u64 size_of(const char *name, u64 otherwise) {
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return otherwise;
    u64 number = strtoull(text, &end, 10);
    switch (toupper((unsigned char)*end)) {
    case 'G':
        return number << 30;
    case 'M':
        return number << 20;
    case 'K':
        return number << 10;
    default:
        return number;
    }
}

static nvmlReturn_t begin(void) {
    pthread_mutex_lock(&lock);
    if (!users++) {
        count = (unsigned)size_of("SIM_CUDA_DEVICES", 2);
        if (count > MOST_DEVICES)
            count = MOST_DEVICES;
        memory = size_of("SIM_CUDA_MEMORY", (u64)16 << 30);
        for (unsigned i = 0; i < count; i++)
            devices[i] = (struct device){
                size_of("SIM_CUDA_SOFT_LIMIT", 0),
                size_of("SIM_CUDA_HARD_LIMIT", NO_LIMIT),
            };
    }
    nvmlReturn_t code = count ? SUCCESS : DRIVER_NOT_LOADED;
    if (code)
        users--;
    pthread_mutex_unlock(&lock);
    return code;
}

EXPORT nvmlReturn_t nvmlInit(void) { return begin(); }
EXPORT nvmlReturn_t nvmlInit_v2(void) { return begin(); }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return begin();
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = users ? SUCCESS : UNINITIALIZED;
    if (users)
        users--;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Whether the library is in use; if not, every call fails so. */
static int off(void) {
    pthread_mutex_lock(&lock);
    int none = !users;
    pthread_mutex_unlock(&lock);
    return none;
}

static int is_ours(nvmlDevice_t device) {
    return device >= devices && device < devices + count;
}

/* What every question about a device begins with. */
#define ASK(device, to)                                                        \
    do {                                                                       \
        if (off())                                                             \
            return UNINITIALIZED;                                              \
        if (!is_ours(device) || !(to))                                         \
            return INVALID_ARGUMENT;                                           \
    } while (0)

/* A function of the simulated driver, where it is loaded. */
static void *of_driver(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver)
        return NULL;
    void *found = dlsym(driver, name);
    dlclose(driver);
    return found;
}

static u64 used_on(nvmlDevice_t device) {
    uint64_t (*bytes)(const char *, int);
    *(void **)&bytes = of_driver("sim_cuda_bytes");
    u64 own = bytes ? bytes(NULL, (int)(device - devices)) : 0;
    u64 used = own + size_of("SIM_CUDA_NVML_USED", 0);
    return used < memory ? used : memory;
}

static nvmlReturn_t put(char *to, unsigned room, const char *text) {
    if (!to)
        return INVALID_ARGUMENT;
    if (strlen(text) >= room)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case SUCCESS:
        return "Success";
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID_ARGUMENT:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NO_PERMISSION:
        return "Insufficient Permissions";
    case NOT_FOUND:
        return "Not Found";
    case INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case VERSION_MISMATCH:
        return "Argument Version Mismatch";
    default:
        return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *to, unsigned room) {
    return off() ? UNINITIALIZED : put(to, room, "615.71.05");
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *to, unsigned room) {
    return off() ? UNINITIALIZED : put(to, room, "13.615.71.05");
}

/* Works before the library is initialised. */
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    if (!version)
        return INVALID_ARGUMENT;
    *version = (int)size_of("SIM_CUDA_VERSION", 13000);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *to) {
    if (off())
        return UNINITIALIZED;
    if (!to)
        return INVALID_ARGUMENT;
    *to = count;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *to) {
    return nvmlDeviceGetCount_v2(to);
}

/* The order of the indexes: CUDA's, or its reverse. It is its own inverse. */
static unsigned ordered(unsigned index) {
    const char *reversed = getenv("SIM_CUDA_NVML_REVERSED");
    return reversed && !strcmp(reversed, "1") ? count - 1 - index : index;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index,
                                                  nvmlDevice_t *to) {
    if (off())
        return UNINITIALIZED;
    if (!to || index >= count)
        return INVALID_ARGUMENT;
    *to = devices + ordered(index);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index,
                                               nvmlDevice_t *to) {
    return nvmlDeviceGetHandleByIndex_v2(index, to);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *to) {
    ASK(device, to);
    *to = ordered((unsigned)(device - devices));
    return SUCCESS;
}

/* The driver's bytes ("simulated-gp" and the number) as text. */
static void uuid_of(unsigned device, char text[41]) {
    snprintf(text, 41, "GPU-73696d75-6c61-7465-642d-6770%08x", device);
}

static void bus_of(unsigned device, char text[32]) {
    snprintf(text, 32, "00000000:%02X:00.0", device + 1);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid,
                                              nvmlDevice_t *to) {
    char text[41];
    if (off())
        return UNINITIALIZED;
    if (!uuid || !to)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < count; i++) {
        uuid_of(i, text);
        if (!strcasecmp(text, uuid)) {
            *to = devices + i;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* The domain of the argument may have any number of digits. */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus,
                                                     nvmlDevice_t *to) {
    char text[32];
    if (off())
        return UNINITIALIZED;
    if (!bus || !to)
        return INVALID_ARGUMENT;
    const char *colon = strchr(bus, ':');
    const char *rest = colon && strchr(colon + 1, ':') ? colon + 1 : bus;
    for (unsigned i = 0; i < count; i++) {
        bus_of(i, text);
        if (!strcasecmp(text + 9, rest)) {
            *to = devices + i;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus,
                                                  nvmlDevice_t *to) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus, to);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *to,
                                      unsigned room) {
    ASK(device, to);
    return put(to, room, "Simulated H200");
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *to,
                                      unsigned room) {
    char text[41];
    ASK(device, to);
    uuid_of((unsigned)(device - devices), text);
    return put(to, room, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device,
                                            nvmlPciInfo_t *to) {
    ASK(device, to);
    memset(to, 0, sizeof *to);
    bus_of((unsigned)(device - devices), to->bus_id);
    strcpy(to->bus_legacy, to->bus_id + 4);
    to->bus = (unsigned)(device - devices) + 1;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device,
                                            nvmlPciInfo_t *to) {
    return nvmlDeviceGetPciInfo_v3(device, to);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device,
                                         nvmlPciInfo_t *to) {
    return nvmlDeviceGetPciInfo_v3(device, to);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device,
                                            nvmlMemory_t *to) {
    ASK(device, to);
    u64 used = used_on(device);
    *to = (nvmlMemory_t){memory, memory - used, used};
    return SUCCESS;
}

/* Here, and not in the first version, the process's limit is what there is. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device,
                                               nvmlMemory_v2_t *to) {
    enum { VERSION = 2 << 24 | sizeof(nvmlMemory_v2_t) };
    ASK(device, to);
    if (to->version != VERSION)
        return VERSION_MISMATCH;
    u64 used = used_on(device);
    to->total = memory < device->hard ? memory : device->hard;
    to->reserved = 0;
    to->free = used < to->total ? to->total - used : 0;
    to->used = used;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now,
                                         unsigned *later) {
    ASK(device, now && later);
    return NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device,
                                                unsigned *to) {
    ASK(device, to);
    *to = 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t
nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device,
                             nvmlGetMemoryLimits_v1_t *limits) {
    ASK(device, limits && limits->name_space);
    pthread_mutex_lock(&lock);
    limits->soft = device->soft;
    limits->hard = device->hard;
    pthread_mutex_unlock(&lock);
    limits->used = used_on(device);
    return SUCCESS;
}

EXPORT nvmlReturn_t
nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device,
                             nvmlSetMemoryLimits_v1_t *limits) {
    ASK(device, limits && limits->name_space);
    const char *root = getenv("SIM_CUDA_NVML_ROOT");
    if (!root || strcmp(root, "1"))
        return NO_PERMISSION;
    if (limits->soft > limits->hard)
        return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    device->soft = limits->soft;
    device->hard = limits->hard;
    pthread_mutex_unlock(&lock);
    void (*limit)(int, uint64_t);
    *(void **)&limit = of_driver("sim_cuda_limit");
    if (limit)
        limit((int)(device - devices), limits->hard);
    return SUCCESS;
}

/* This process, if it uses the device. */
static unsigned processes(nvmlDevice_t device, u64 *used) {
    *used = used_on(device);
    return *used > 0;
}

EXPORT nvmlReturn_t
nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *room,
                                        nvmlProcessInfo_t *to) {
    u64 used;
    ASK(device, room);
    unsigned there = processes(device, &used);
    if (*room < there) {
        *room = there;
        return INSUFFICIENT_SIZE;
    }
    *room = there;
    if (there && !to)
        return INVALID_ARGUMENT;
    if (there)
        *to = (nvmlProcessInfo_t){(unsigned)getpid(), used, ~0U, ~0U};
    return SUCCESS;
}

EXPORT nvmlReturn_t
nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *room,
                                        nvmlProcessInfo_t *to) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, room, to);
}

EXPORT nvmlReturn_t
nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *room,
                                     nvmlProcessInfo_v1_t *to) {
    nvmlProcessInfo_t one;
    nvmlReturn_t code =
        nvmlDeviceGetComputeRunningProcesses_v3(device, room, to ? &one : NULL);
    if (!code && *room)
        *to = (nvmlProcessInfo_v1_t){one.pid, one.used};
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device,
                                                        unsigned link,
                                                        unsigned *to) {
    (void)link;
    ASK(device, to);
    return NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device,
                                                        unsigned link,
                                                        nvmlPciInfo_t *to) {
    (void)link;
    ASK(device, to);
    return NOT_SUPPORTED;
}
