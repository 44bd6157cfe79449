/*
 * A driver that costs about nothing, as libcuda.so.1: one device whose memory
 * has no end, no work, and events that are reached at once. What is measured
 * above it is the allocator and the runtime's short way, not a driver.
 *
 * LIGHT_EVENT_NS: recording an event, and asking or waiting for one, spins so
 * long (default 0): what the calls cost on a real driver.
 *
 * Memory goes up and never comes back, in steps of 2 MiB. It serves the
 * functions that the thin runtime (tests/sim/cudart), the library and
 * PyTorch's allocator call; to all others it answers "not supported".
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500 };
enum { VERSION = 13000, PAGE = 2 << 20 };

static const size_t total = (size_t)1 << 43;
static char context; /* its address is the handle */
static _Atomic uintptr_t next_handle = 0x1000;
static _Atomic uint64_t next_address = (uint64_t)1 << 44;
static __thread void *current;
static __thread int capture_mode;
static long event_ns;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int event_work(void) {
    if (event_ns) {
        double end = now_ns() + (double)event_ns;
        while (now_ns() < end) {
        }
    }
    return SUCCESS;
}

static int give_handle(void **handle) {
    *handle = (void *)(next_handle += 16);
    return SUCCESS;
}

EXPORT int cuInit(unsigned flags) {
    const char *text = getenv("LIGHT_EVENT_NS");
    event_ns = text ? atol(text) : 0;
    return flags ? INVALID_VALUE : SUCCESS;
}

EXPORT int cuDriverGetVersion(int *version) {
    *version = VERSION;
    return SUCCESS;
}

EXPORT int cuDeviceGetCount(int *count) {
    *count = 1;
    return SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal ? INVALID_VALUE : SUCCESS;
}

EXPORT int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    snprintf(name, (size_t)length, "light");
    return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = total;
    return SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int *value, int which, int device) {
    enum { MAJOR = 75 };
    (void)device;
    *value = which == MAJOR ? 9 : 1;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(void **found, int device) {
    (void)device;
    *found = &context;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags,
                                      int *active) {
    (void)device;
    *flags = 0;
    *active = 1;
    return SUCCESS;
}

EXPORT int cuCtxGetCurrent(void **found) {
    *found = current;
    return SUCCESS;
}

EXPORT int cuCtxSetCurrent(void *wanted) {
    current = wanted;
    return SUCCESS;
}

EXPORT int cuCtxPushCurrent_v2(void *wanted) { return cuCtxSetCurrent(wanted); }

EXPORT int cuCtxPopCurrent_v2(void **found) {
    *found = current;
    current = NULL;
    return SUCCESS;
}

EXPORT int cuCtxGetDevice(int *device) {
    *device = 0;
    return SUCCESS;
}

EXPORT int cuCtxSynchronize(void) { return event_work(); }

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return SUCCESS;
}

EXPORT int cuCtxRecordEvent(void *of, void *event) {
    (void)of;
    (void)event;
    return event_work();
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    if (!size)
        return INVALID_VALUE;
    *address = atomic_fetch_add_explicit(
        &next_address, (size + PAGE - 1) / PAGE * PAGE, memory_order_relaxed);
    return SUCCESS;
}

EXPORT int cuMemFree_v2(uint64_t address) {
    return address ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuMemGetInfo_v2(size_t *available, size_t *all) {
    *available = *all = total;
    return SUCCESS;
}

EXPORT int cuStreamCreateWithPriority(void **stream, unsigned flags,
                                      int priority) {
    (void)flags;
    (void)priority;
    return give_handle(stream);
}

EXPORT int cuStreamIsCapturing(void *stream, int *status) {
    (void)stream;
    *status = 0;
    return SUCCESS;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return SUCCESS;
}

EXPORT int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    return give_handle(event);
}

EXPORT int cuEventDestroy_v2(void *event) {
    (void)event;
    return SUCCESS;
}

EXPORT int cuEventRecord(void *event, void *stream) {
    (void)event;
    (void)stream;
    return event_work();
}

EXPORT int cuEventQuery(void *event) {
    (void)event;
    return event_work();
}

EXPORT int cuEventSynchronize(void *event) {
    (void)event;
    return event_work();
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version,
                               uint64_t flags, int *status);

/* By the base names; _v2 is the only form here of those that have one. */
static const struct {
    const char *name;
    void *function;
} functions[] = {
#define FUNCTION(name, symbol) {#name, (void *)symbol},
#define PLAIN(name) FUNCTION(name, name)
    FUNCTION(cuGetProcAddress, cuGetProcAddress_v2)
    PLAIN(cuInit) PLAIN(cuDriverGetVersion) PLAIN(cuDeviceGetCount)
    PLAIN(cuDeviceGet) PLAIN(cuDeviceGetName)
    FUNCTION(cuDeviceTotalMem, cuDeviceTotalMem_v2)
    PLAIN(cuDeviceGetAttribute) PLAIN(cuDevicePrimaryCtxRetain)
    FUNCTION(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)
    PLAIN(cuDevicePrimaryCtxGetState)
    PLAIN(cuCtxGetCurrent) PLAIN(cuCtxSetCurrent)
    FUNCTION(cuCtxPushCurrent, cuCtxPushCurrent_v2)
    FUNCTION(cuCtxPopCurrent, cuCtxPopCurrent_v2)
    PLAIN(cuCtxGetDevice) PLAIN(cuCtxSynchronize)
    PLAIN(cuCtxGetStreamPriorityRange) PLAIN(cuCtxRecordEvent)
    FUNCTION(cuMemAlloc, cuMemAlloc_v2) FUNCTION(cuMemFree, cuMemFree_v2)
    FUNCTION(cuMemGetInfo, cuMemGetInfo_v2)
    PLAIN(cuStreamCreateWithPriority) PLAIN(cuStreamIsCapturing)
    PLAIN(cuThreadExchangeStreamCaptureMode)
    PLAIN(cuEventCreate) FUNCTION(cuEventDestroy, cuEventDestroy_v2)
    PLAIN(cuEventRecord) PLAIN(cuEventQuery) PLAIN(cuEventSynchronize)
};

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version,
                               uint64_t flags, int *status) {
    enum { NOT_THERE = 1 };
    (void)version;
    (void)flags;
    *function = NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name))
            *function = functions[i].function;
    if (status)
        *status = *function ? SUCCESS : NOT_THERE;
    return *function ? SUCCESS : NOT_FOUND;
}
