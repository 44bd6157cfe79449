/*
 * Finding the driver, and the end of the process.
 *
 * The search is that of CUDA's own runtime: one dlopen of libcuda.so.1, dlsym
 * of cuGetProcAddress_v2, then cuGetProcAddress is asked for itself, and the
 * pointer that this gives serves every further look-up. An interposer that
 * does not answer there with itself sees nothing else. A driver without
 * cuGetProcAddress, which came with CUDA 11.3, is asked by dlsym for each
 * function, as runtimes of its time did.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef CUresult (*proc_address_fn)(const char *, void **, int, uint64_t, int *);

enum { PLAIN = 0, PER_THREAD = 2 };

struct driver simrt_driver;

static atomic_int loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t load_result = cudaErrorInsufficientDriver;
static atomic_bool unloading;
static __thread cudaError_t last_error __attribute__((tls_model("initial-exec")));

/*
 * Stands in for what the driver lacks. It is called with any arguments, which
 * the calling convention of the platforms in question allows.
 */
static CUresult lacking(void) { return cudaErrorCallRequiresNewerDriver; }

static void *library;

/*
 * By the name of the ABI that the version stands for: with few exceptions
 * there is none before 3.2 and _v2 after it, where that exists.
 */
static void *look_up_by_name(const char *name, int version, uint64_t flags) {
    enum { SECOND_ABI = 3020 };
    static const char *const suffixes[] = {"_v2", ""};
    static const char *const twins[] = {"_ptsz", "_ptds"};
    int exact = !strcmp(name, "cuLaunchHostFunc");
    char full[128];
    if (!strcmp(name, "cuGraphInstantiate"))
        name = "cuGraphInstantiateWithFlags";
    for (int i = exact || version < SECOND_ABI; i < 2; i++) {
        for (int twin = 0; flags == PER_THREAD && twin < 2; twin++) {
            snprintf(full, sizeof full, "%s%s%s", name, suffixes[i],
                     twins[twin]);
            void *found = dlsym(library, full);
            if (found)
                return found;
        }
        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        void *found = dlsym(library, full);
        if (found)
            return found;
    }
    return NULL;
}

static void *look_up(const char *name, int version, uint64_t flags) {
    void *found = NULL;
    int status = 0;
    if (!simrt_driver.get_proc_address)
        return look_up_by_name(name, version, flags);
    if (simrt_driver.get_proc_address(name, &found, version, flags, &status))
        return NULL;
    return found;
}

static void fetch_functions(void) {
    void *found;
#define FETCH(name, plain, twin, parameters)                                   \
    found = look_up(#name, plain, PLAIN);                                      \
    simrt_driver.name[0] =                                                     \
        (CUresult(*) parameters)(found ? found : (void *)lacking);             \
    found = twin ? look_up(#name, twin, PER_THREAD) : NULL;                    \
    simrt_driver.name[1] =                                                     \
        found ? (CUresult(*) parameters)found : simrt_driver.name[0];
    DRIVER_FUNCTIONS(FETCH)
#undef FETCH
}

static void load(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return;
#if CUDART_MAJOR >= 13
    CUresult (*get_version)(int *) =
        (CUresult(*)(int *))dlsym(library, "cuDriverGetVersion");
    int early = 0;
    if (!get_version || get_version(&early) || early < CUDART_MAJOR * 1000)
        return;
#endif
    proc_address_fn first =
        (proc_address_fn)dlsym(library, "cuGetProcAddress_v2");
    void *again = NULL;
    int status = 0;
    if (first &&
        (first("cuGetProcAddress", &again, 12000, PLAIN, &status) || !again))
        return;
    simrt_driver.get_proc_address = (proc_address_fn)again;
    fetch_functions();
    int version = 0;
    if (DRIVER(cuDriverGetVersion)(&version) || version < CUDART_MAJOR * 1000)
        return;
    load_result = DRIVER(cuInit)(0);
}

cudaError_t simrt_need_driver(void) {
    if (atomic_load_explicit(&unloading, memory_order_relaxed))
        return cudaErrorCudartUnloading;
    if (!atomic_load_explicit(&loaded, memory_order_acquire)) {
        pthread_once(&once, load);
        atomic_store_explicit(&loaded, 1, memory_order_release);
    }
    return load_result;
}

__attribute__((destructor)) static void unload(void) {
    atomic_store_explicit(&unloading, 1, memory_order_relaxed);
}

cudaError_t simrt_record(cudaError_t code) {
    if (code != cudaSuccess && code != cudaErrorNotReady)
        last_error = code;
    return code;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

cudaError_t cudaRuntimeGetVersion(int *version) {
    if (!version)
        return simrt_record(cudaErrorInvalidValue);
    *version = CUDART_MAJOR == 12 ? 12080 : 13000;
    return cudaSuccess;
}

/* Zero and success where there is no driver, as CUDA documents. */
cudaError_t cudaDriverGetVersion(int *version) {
    if (!version)
        return simrt_record(cudaErrorInvalidValue);
    *version = 0;
    if (simrt_need_driver())
        return cudaSuccess;
    return simrt_record(DRIVER(cuDriverGetVersion)(version));
}

static cudaError_t entry_point(int twin, const char *symbol, void **function,
                               int version, unsigned long long flags,
                               int *status) {
    enum { CUDA_PER_THREAD = 2 };
    cudaError_t needed = simrt_need_driver();
    if (needed)
        return simrt_record(needed);
    if (!symbol || !function)
        return simrt_record(cudaErrorInvalidValue);
    int per_thread = twin && flags == 0;
    int found = 0;
    *function = NULL;
    if (!simrt_driver.get_proc_address)
        return simrt_record(cudaErrorCallRequiresNewerDriver);
    CUresult code = simrt_driver.get_proc_address(
        symbol, function, version, per_thread ? CUDA_PER_THREAD : flags, &found);
    if (!*function)
        found = 1; /* symbol not found */
    if (status)
        *status = found;
    return simrt_record(status ? cudaSuccess : code);
}

#define ENTRY(twin)                                                            \
    entry_point(twin, symbol, function, CUDART_MAJOR == 12 ? 12080 : 13000,    \
                flags, status)

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function,
                                    unsigned long long flags, int *status) {
    return ENTRY(0);
}

cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function,
                                         unsigned long long flags,
                                         int *status) {
    return ENTRY(1);
}

EXPORT_WITH_TWIN(cudaGetDriverEntryPointByVersion, _ptsz, entry_point,
                 (const char *symbol, void **function, unsigned version,
                  unsigned long long flags, int *status),
                 symbol, function, (int)version, flags, status)
