/*
 * Kernels: the registration calls that compiled host code makes before main,
 * libraries loaded by hand, and launches.
 *
 * Registration only notes; the driver is asked when a kernel or a variable is
 * first used, so that a program that never launches loads no module.
 *
 * Invariant: everything registered lives until exit. A kernel is named either
 * by its host function or by the handle that the driver gave for it.
 */
#include "pointer_map.h"
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>

enum { FATBIN_WRAPPER = 0x466243b1 };

struct wrapper {
    int magic, version;
    const void *data;
    void *file_name;
};

struct image {
    const void *data;
    CUlibrary library; /* NULL until something in it is used */
};

struct symbol {
    struct image *image;
    const char *name;
    CUkernel kernel;
    CUdeviceptr at;
    size_t size;
};

struct launch_config {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

typedef struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    void *attributes;
    unsigned attribute_count;
} cudaLaunchConfig_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pointer_map functions, variables, handles;

enum { CONFIG_DEPTH = 16 };
static __thread struct launch_config configs[CONFIG_DEPTH];
static __thread int config_count;

void **__cudaRegisterFatBinary(void *fatbin) {
    struct image *image = calloc(1, sizeof *image);
    const struct wrapper *wrapper = fatbin;
    if (image)
        image->data =
            wrapper->magic == FATBIN_WRAPPER ? wrapper->data : fatbin;
    return (void **)image;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

/* Runs among the exit handlers, where the driver may be gone: nothing is
 * unloaded. */
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

static struct symbol *register_symbol(struct pointer_map *map, void **handle,
                                      const void *host, const char *name) {
    struct symbol *symbol = calloc(1, sizeof *symbol);
    if (!symbol)
        return NULL;
    symbol->image = (struct image *)handle;
    symbol->name = name;
    pthread_mutex_lock(&lock);
    simrt_map_put(map, host, symbol);
    pthread_mutex_unlock(&lock);
    return symbol;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device,
                            const char *name, int thread_limit, void *thread,
                            void *block, void *block_extent, void *grid_extent,
                            int *warp_size) {
    (void)device, (void)thread_limit, (void)thread, (void)block;
    (void)block_extent, (void)grid_extent, (void)warp_size;
    register_symbol(&functions, handle, host, name);
}

void __cudaRegisterVar(void **handle, char *host, char *device,
                       const char *name, int is_extern, size_t size,
                       int constant, int global) {
    (void)device, (void)is_extern, (void)constant, (void)global;
    struct symbol *symbol = register_symbol(&variables, handle, host, name);
    if (symbol)
        symbol->size = size;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                     size_t shared_bytes, void *stream) {
    if (config_count == CONFIG_DEPTH)
        return 1;
    configs[config_count++] = (struct launch_config){
        grid, block, shared_bytes, (cudaStream_t)stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block,
                                       size_t *shared_bytes, void *stream) {
    if (config_count == 0)
        return simrt_record(cudaErrorMissingConfiguration);
    struct launch_config *config = &configs[--config_count];
    *grid = config->grid;
    *block = config->block;
    *shared_bytes = config->shared_bytes;
    *(cudaStream_t *)stream = config->stream;
    return cudaSuccess;
}

static cudaError_t load_image(struct image *image) {
    if (!image)
        return cudaErrorInvalidDeviceFunction;
    if (image->library)
        return cudaSuccess;
    return DRIVER(cuLibraryLoadData)(&image->library, image->data, NULL, NULL,
                                     0, NULL, NULL, 0);
}

cudaError_t simrt_find_kernel(CUkernel *kernel, const void *name) {
    cudaError_t code = cudaErrorInvalidDeviceFunction;
    pthread_mutex_lock(&lock);
    struct symbol *symbol = simrt_map_get(&functions, name);
    if (symbol && !symbol->kernel) {
        code = load_image(symbol->image);
        if (!code)
            code = DRIVER(cuLibraryGetKernel)(
                &symbol->kernel, symbol->image->library, symbol->name);
        if (!code)
            simrt_map_put(&handles, symbol->kernel, symbol->kernel);
    }
    *kernel = symbol ? symbol->kernel : simrt_map_get(&handles, name);
    pthread_mutex_unlock(&lock);
    return *kernel ? cudaSuccess : code;
}

static cudaError_t find_variable(const void *host, void **at, size_t *size) {
    cudaError_t code = cudaErrorInvalidSymbol;
    pthread_mutex_lock(&lock);
    struct symbol *symbol = simrt_map_get(&variables, host);
    if (symbol && !symbol->at) {
        code = load_image(symbol->image);
        if (!code)
            code = DRIVER(cuLibraryGetGlobal)(&symbol->at, &symbol->size,
                                              symbol->image->library,
                                              symbol->name);
    } else if (symbol) {
        code = cudaSuccess;
    }
    if (!code && at)
        *at = (void *)(uintptr_t)symbol->at;
    if (!code && size)
        *size = symbol->size;
    pthread_mutex_unlock(&lock);
    return code;
}

cudaError_t cudaGetSymbolAddress(void **at, const void *symbol) {
    IN_CONTEXT(at ? find_variable(symbol, at, NULL) : cudaErrorInvalidValue);
}

cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
    IN_CONTEXT(size ? find_variable(symbol, NULL, size)
                    : cudaErrorInvalidValue);
}

cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    IN_CONTEXT(kernel ? simrt_find_kernel(kernel, host)
                      : cudaErrorInvalidValue);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    return cudaGetKernel(kernel, host);
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code,
                                void *jit_options, void **jit_values,
                                unsigned jit_count, void *options,
                                void **values, unsigned count) {
    IN_CONTEXT(DRIVER(cuLibraryLoadData)(library, code, jit_options, jit_values,
                                         jit_count, options, values, count));
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
    IN_CONTEXT(DRIVER(cuLibraryUnload)(library));
}

static cudaError_t library_kernel(cudaKernel_t *kernel, cudaLibrary_t library,
                                  const char *name) {
    cudaError_t code = DRIVER(cuLibraryGetKernel)(kernel, library, name);
    if (code)
        return code;
    pthread_mutex_lock(&lock);
    simrt_map_put(&handles, *kernel, *kernel);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library,
                                 const char *name) {
    IN_CONTEXT(library_kernel(kernel, library, name));
}

static cudaError_t launch(int twin, const void *function, dim3 grid, dim3 block,
                          void **arguments, size_t shared_bytes,
                          cudaStream_t stream) {
    CUkernel kernel = NULL;
    cudaError_t code = simrt_need_context();
    if (!code)
        code = simrt_find_kernel(&kernel, function);
    if (!code)
        code = DRIVER_OF(cuLaunchKernel, twin)(
            kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
            (unsigned)shared_bytes, stream, arguments, NULL);
    return simrt_record(code);
}

EXPORT_WITH_TWIN(cudaLaunchKernel, _ptsz, launch,
                 (const void *function, dim3 grid, dim3 block, void **arguments,
                  size_t shared_bytes, cudaStream_t stream),
                 function, grid, block, arguments, shared_bytes, stream)
EXPORT_WITH_TWIN(__cudaLaunchKernel, _ptsz, launch,
                 (cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                  size_t shared_bytes, cudaStream_t stream),
                 kernel, grid, block, arguments, shared_bytes, stream)

static cudaError_t launch_ex(int twin, const cudaLaunchConfig_t *config,
                             const void *function, void **arguments) {
    CUkernel kernel = NULL;
    cudaError_t code = simrt_need_context();
    if (!code && !config)
        code = cudaErrorInvalidConfiguration;
    if (!code)
        code = simrt_find_kernel(&kernel, function);
    if (code)
        return simrt_record(code);
    CUlaunchConfig driver_config = {
        config->grid.x,  config->grid.y,
        config->grid.z,  config->block.x,
        config->block.y, config->block.z,
        (unsigned)config->shared_bytes, config->stream,
        config->attributes, config->attribute_count,
    };
    return simrt_record(DRIVER_OF(cuLaunchKernelEx, twin)(
        &driver_config, kernel, arguments, NULL));
}

EXPORT_WITH_TWIN(cudaLaunchKernelExC, _ptsz, launch_ex,
                 (const cudaLaunchConfig_t *config, const void *function,
                  void **arguments),
                 config, function, arguments)
