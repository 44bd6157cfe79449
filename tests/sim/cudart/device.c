/*
 * Devices and their primary contexts.
 *
 * Invariant: a thread that passed simrt_need_context has a current context,
 * its own if it made one through the driver, else the primary context of its
 * device. A context is made when it is first needed, or by cudaSetDevice
 * (with SIM_CUDA_SETS_LATE=1 not by that).
 * Cost: one cuCtxGetCurrent per call of the program.
 */
#include "runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    CUcontext context; /* also after a reset, to know a stale one */
    int active;
} primaries[MAX_DEVICES];
/* Whether a device was ever reset, or set late: if not, no call need look for
 * a context to leave, and none takes the lock. */
static atomic_int ever_left;
static __thread int thread_device __attribute__((tls_model("initial-exec")));
/* It is set, and its context is made current by the next call that needs one. */
static __thread int is_due __attribute__((tls_model("initial-exec")));

static cudaError_t device_handle(int ordinal, CUdevice *device) {
    int count = 0;
    cudaError_t code = DRIVER(cuDeviceGetCount)(&count);
    if (code)
        return code;
    if (count == 0)
        return cudaErrorNoDevice;
    if (ordinal < 0 || ordinal >= count || ordinal >= MAX_DEVICES)
        return cudaErrorInvalidDevice;
    return DRIVER(cuDeviceGet)(device, ordinal);
}

cudaError_t simrt_primary(int ordinal, CUcontext *context) {
    CUdevice device;
    cudaError_t code = device_handle(ordinal, &device);
    if (code)
        return code;
    pthread_mutex_lock(&lock);
    if (!primaries[ordinal].active) {
        code = DRIVER(cuDevicePrimaryCtxRetain)(&primaries[ordinal].context,
                                                device);
        primaries[ordinal].active = code == cudaSuccess;
    }
    *context = primaries[ordinal].context;
    pthread_mutex_unlock(&lock);
    return code;
}

/* The device to enter in place of this context, which is the primary one of a
 * device that was reset, or another one was set since; else -1. Apart, so that
 * other programs' calls take not one instruction more. */
static __attribute__((noinline, cold)) int device_after(CUcontext context) {
    int found = -1;
    if (is_due)
        return thread_device;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_DEVICES && found < 0; i++)
        if (primaries[i].context == context && !primaries[i].active)
            found = i;
    pthread_mutex_unlock(&lock);
    return found;
}

static cudaError_t enter_primary(int ordinal) {
    CUcontext context;
    cudaError_t code = simrt_primary(ordinal, &context);
    is_due = 0;
    return code ? code : DRIVER(cuCtxSetCurrent)(context);
}

cudaError_t simrt_need_context(void) {
    cudaError_t code = simrt_need_driver();
    if (code)
        return code;
    CUcontext current = NULL;
    code = DRIVER(cuCtxGetCurrent)(&current);
    if (code)
        return code;
    if (!current)
        return enter_primary(thread_device);
    if (!atomic_load_explicit(&ever_left, memory_order_acquire))
        return cudaSuccess;
    int after = device_after(current);
    return after < 0 ? cudaSuccess : enter_primary(after);
}

static int current_device(void) {
    CUcontext current = NULL;
    CUdevice device;
    if (!is_due && !DRIVER(cuCtxGetCurrent)(&current) && current &&
        !DRIVER(cuCtxGetDevice)(&device))
        return device;
    return thread_device;
}

static cudaError_t count_devices(int *count) {
    if (!count)
        return cudaErrorInvalidValue;
    cudaError_t code = DRIVER(cuDeviceGetCount)(count);
    return code ? code : *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceCount(int *count) { IN_DRIVER(count_devices(count)); }

cudaError_t cudaGetDevice(int *device) {
    if (!device)
        return simrt_record(cudaErrorInvalidValue);
    IN_DRIVER((*device = current_device(), cudaSuccess));
}

/* As runtimes before 12 may. */
static int sets_late(void) {
    const char *late = getenv("SIM_CUDA_SETS_LATE");
    return late && !strcmp(late, "1");
}

static cudaError_t set_device(int ordinal) {
    CUdevice device;
    int is_late = sets_late();
    cudaError_t code =
        is_late ? device_handle(ordinal, &device) : enter_primary(ordinal);
    if (!code) {
        thread_device = ordinal;
        is_due = is_late;
    }
    if (is_late)
        atomic_store_explicit(&ever_left, 1, memory_order_release);
    return code;
}

cudaError_t cudaSetDevice(int device) { IN_DRIVER(set_device(device)); }

static cudaError_t init_device(int ordinal, unsigned flags, unsigned given) {
    enum { FLAGS_ARE_VALID = 1 };
    CUdevice device;
    CUcontext context;
    cudaError_t code = device_handle(ordinal, &device);
    if (!code && (given & FLAGS_ARE_VALID))
        code = DRIVER(cuDevicePrimaryCtxSetFlags)(device, flags);
    return code ? code : simrt_primary(ordinal, &context);
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    IN_DRIVER(init_device(device, device_flags, flags));
}

static cudaError_t device_flags(unsigned *read, unsigned write) {
    CUdevice device;
    int active;
    cudaError_t code = device_handle(current_device(), &device);
    if (code)
        return code;
    if (!read)
        return DRIVER(cuDevicePrimaryCtxSetFlags)(device, write);
    return DRIVER(cuDevicePrimaryCtxGetState)(device, read, &active);
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    IN_DRIVER(device_flags(NULL, flags));
}

cudaError_t cudaGetDeviceFlags(unsigned *flags) {
    IN_DRIVER(flags ? device_flags(flags, 0) : cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize(void) {
    IN_CONTEXT(DRIVER(cuCtxSynchronize)());
}

static cudaError_t reset_device(void) {
    int ordinal = current_device();
    CUdevice device;
    cudaError_t code = device_handle(ordinal, &device);
    if (code)
        return code;
    pthread_mutex_lock(&lock);
    primaries[ordinal].active = 0;
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&ever_left, 1, memory_order_release);
    return DRIVER(cuDevicePrimaryCtxReset)(device);
}

cudaError_t cudaDeviceReset(void) { IN_DRIVER(reset_device()); }

/* The runtime's numbers for attributes are the driver's. */
static cudaError_t attribute(int *value, int which, int ordinal) {
    CUdevice device;
    cudaError_t code = device_handle(ordinal, &device);
    return code ? code : DRIVER(cuDeviceGetAttribute)(value, which, device);
}

cudaError_t cudaDeviceGetAttribute(int *value, int which, int device) {
    IN_DRIVER(value ? attribute(value, which, device) : cudaErrorInvalidValue);
}

static cudaError_t bus_id(char *text, int length, int ordinal) {
    CUdevice device;
    cudaError_t code = device_handle(ordinal, &device);
    return code ? code : DRIVER(cuDeviceGetPCIBusId)(text, length, device);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    IN_DRIVER(text ? bus_id(text, length, device) : cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    IN_CONTEXT(DRIVER(cuCtxGetStreamPriorityRange)(least, greatest));
}

static cudaError_t can_access(int *can, int ordinal, int peer_ordinal) {
    CUdevice device, peer;
    cudaError_t code = device_handle(ordinal, &device);
    if (!code)
        code = device_handle(peer_ordinal, &peer);
    return code ? code : DRIVER(cuDeviceCanAccessPeer)(can, device, peer);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    IN_DRIVER(can ? can_access(can, device, peer) : cudaErrorInvalidValue);
}

static cudaError_t peer_access(int peer, unsigned flags, int enable) {
    CUcontext context;
    cudaError_t code = simrt_primary(peer, &context);
    if (code)
        return code;
    return enable ? DRIVER(cuCtxEnablePeerAccess)(context, flags)
                  : DRIVER(cuCtxDisablePeerAccess)(context);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    IN_CONTEXT(peer_access(peer, flags, 1));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    IN_CONTEXT(peer_access(peer, 0, 0));
}
