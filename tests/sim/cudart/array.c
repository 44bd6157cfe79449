/*
 * Arrays: what the runtime says of channels becomes a format of the driver.
 */
#include "runtime.h"

struct cudaChannelFormatDesc {
    int bits[4];
    int kind;
};

enum { SIGNED = 0, UNSIGNED = 1, FLOAT = 2, FIRST_NORMALIZED = 5, LAST = 16 };

/* The driver's numbers for formats. */
enum {
    UNSIGNED_8 = 0x01,
    SIGNED_8 = 0x08,
    HALF = 0x10,
    SINGLE = 0x20,
    NORMALIZED = 0xc0,
};

static const unsigned normalized_channels[] = {1, 2, 4};

/* Of 8, 16 or 32 bits: 0, 1 or 2; else -1. */
static int width_of(int bits) {
    return bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : -1;
}

static cudaError_t format_of(const struct cudaChannelFormatDesc *desc,
                             unsigned *format, unsigned *channels) {
    unsigned count = 0;
    while (count < 4 && desc->bits[count])
        count++;
    for (unsigned i = 1; i < 4; i++)
        if (desc->bits[i] != (i < count ? desc->bits[0] : 0))
            return cudaErrorInvalidChannelDescriptor;
    int width = width_of(desc->bits[0]);
    if (count == 0 || count == 3 || width < 0)
        return cudaErrorInvalidChannelDescriptor;
    *channels = count;
    switch (desc->kind) {
    case SIGNED:
        *format = SIGNED_8 + (unsigned)width;
        return cudaSuccess;
    case UNSIGNED:
        *format = UNSIGNED_8 + (unsigned)width;
        return cudaSuccess;
    case FLOAT:
        *format = width == 1 ? HALF : SINGLE;
        return width ? cudaSuccess : cudaErrorInvalidChannelDescriptor;
    default:
        if (desc->kind < FIRST_NORMALIZED || desc->kind > LAST)
            return cudaErrorInvalidChannelDescriptor;
        *format = NORMALIZED + (unsigned)(desc->kind - FIRST_NORMALIZED);
        return cudaSuccess;
    }
}

static void channels_of(const CUarrayShape *shape,
                        struct cudaChannelFormatDesc *desc) {
    unsigned format = shape->format, channels = shape->channels;
    int bits = 32;
    if (format >= NORMALIZED) {
        unsigned which = format - NORMALIZED;
        desc->kind = FIRST_NORMALIZED + (int)which;
        bits = which / 3 % 2 ? 16 : 8;
        channels = normalized_channels[which % 3];
    } else if (format >= HALF) {
        desc->kind = FLOAT;
        bits = format == HALF ? 16 : 32;
    } else {
        desc->kind = format >= SIGNED_8 ? SIGNED : UNSIGNED;
        bits = 8 << (format - (format >= SIGNED_8 ? SIGNED_8 : UNSIGNED_8));
    }
    for (unsigned i = 0; i < 4; i++)
        desc->bits[i] = i < channels ? bits : 0;
}

static cudaError_t shape_of(const struct cudaChannelFormatDesc *desc,
                            cudaExtent extent, unsigned flags,
                            CUarrayShape *shape) {
    if (!desc)
        return cudaErrorInvalidValue;
    *shape = (CUarrayShape){
        .width = extent.width,
        .height = extent.height,
        .depth = extent.depth,
        .flags = flags,
    };
    return format_of(desc, &shape->format, &shape->channels);
}

static cudaError_t allocate_array(cudaArray_t *out,
                                  const struct cudaChannelFormatDesc *desc,
                                  cudaExtent extent, unsigned flags, int flat) {
    CUarrayShape shape;
    if (!out)
        return cudaErrorInvalidValue;
    cudaError_t code = shape_of(desc, extent, flags, &shape);
    if (code)
        return code;
    CUarrayShape2D two = {shape.width, shape.height, shape.format,
                          shape.channels};
    return flat ? DRIVER(cuArrayCreate)(out, &two)
                : DRIVER(cuArray3DCreate)(out, &shape);
}

cudaError_t cudaMallocArray(cudaArray_t *out,
                            const struct cudaChannelFormatDesc *desc,
                            size_t width, size_t height, unsigned flags) {
    cudaExtent extent = {width, height, 0};
    IN_CONTEXT(allocate_array(out, desc, extent, flags, flags == 0));
}

cudaError_t cudaMalloc3DArray(cudaArray_t *out,
                              const struct cudaChannelFormatDesc *desc,
                              cudaExtent extent, unsigned flags) {
    IN_CONTEXT(allocate_array(out, desc, extent, flags, 0));
}

cudaError_t cudaFreeArray(cudaArray_t array) {
    IN_CONTEXT(array ? DRIVER(cuArrayDestroy)(array) : cudaSuccess);
}

static cudaError_t allocate_mipmap(cudaMipmappedArray_t *out,
                                   const struct cudaChannelFormatDesc *desc,
                                   cudaExtent extent, unsigned levels,
                                   unsigned flags) {
    CUarrayShape shape;
    if (!out)
        return cudaErrorInvalidValue;
    cudaError_t code = shape_of(desc, extent, flags, &shape);
    return code ? code : DRIVER(cuMipmappedArrayCreate)(out, &shape, levels);
}

cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t *out,
                                     const struct cudaChannelFormatDesc *desc,
                                     cudaExtent extent, unsigned levels,
                                     unsigned flags) {
    IN_CONTEXT(allocate_mipmap(out, desc, extent, levels, flags));
}

cudaError_t cudaGetMipmappedArrayLevel(cudaArray_t *out,
                                       cudaMipmappedArray_t mipmap,
                                       unsigned level) {
    IN_CONTEXT(DRIVER(cuMipmappedArrayGetLevel)(out, mipmap, level));
}

cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t mipmap) {
    IN_CONTEXT(mipmap ? DRIVER(cuMipmappedArrayDestroy)(mipmap) : cudaSuccess);
}

cudaError_t cudaArrayGetMemoryRequirements(void *out, cudaArray_t array,
                                           int device) {
    IN_CONTEXT(DRIVER(cuArrayGetMemoryRequirements)(out, array, device));
}

cudaError_t cudaMipmappedArrayGetMemoryRequirements(void *out,
                                                    cudaMipmappedArray_t mipmap,
                                                    int device) {
    IN_CONTEXT(
        DRIVER(cuMipmappedArrayGetMemoryRequirements)(out, mipmap, device));
}

static cudaError_t array_info(struct cudaChannelFormatDesc *desc,
                              cudaExtent *extent, unsigned *flags,
                              cudaArray_t array) {
    CUarrayShape shape;
    cudaError_t code = DRIVER(cuArray3DGetDescriptor)(&shape, array);
    if (code)
        return code;
    if (desc)
        channels_of(&shape, desc);
    if (extent)
        *extent = (cudaExtent){shape.width, shape.height, shape.depth};
    if (flags)
        *flags = shape.flags;
    return cudaSuccess;
}

cudaError_t cudaArrayGetInfo(struct cudaChannelFormatDesc *desc,
                             cudaExtent *extent, unsigned *flags,
                             cudaArray_t array) {
    IN_CONTEXT(array_info(desc, extent, flags, array));
}

/* Unified addresses tell the driver on their own which side is which. */
static CUmemcpy2D to_array(cudaArray_t to, size_t x, size_t y, const void *from,
                           size_t pitch, size_t width, size_t height) {
    return (CUmemcpy2D){
        .src_type = MEMORY_UNIFIED,
        .src_device = (CUdeviceptr)(uintptr_t)from,
        .src_pitch = pitch,
        .dst_type = MEMORY_ARRAY,
        .dst_array = to,
        .dst_x = x,
        .dst_y = y,
        .width = width,
        .height = height,
    };
}

static CUmemcpy2D from_array(void *to, size_t pitch, cudaArray_t from, size_t x,
                             size_t y, size_t width, size_t height) {
    return (CUmemcpy2D){
        .src_type = MEMORY_ARRAY,
        .src_array = from,
        .src_x = x,
        .src_y = y,
        .dst_type = MEMORY_UNIFIED,
        .dst_device = (CUdeviceptr)(uintptr_t)to,
        .dst_pitch = pitch,
        .width = width,
        .height = height,
    };
}

static cudaError_t copy_on(int twin, CUmemcpy2D area) {
    IN_CONTEXT(DRIVER_OF(cuMemcpy2D, twin)(&area));
}

static cudaError_t copy_async_on(int twin, CUmemcpy2D area,
                                 cudaStream_t stream) {
    IN_CONTEXT(DRIVER_OF(cuMemcpy2DAsync, twin)(&area, stream));
}

/* The direction says nothing that the addresses do not. */
EXPORT_WITH_TWIN(cudaMemcpy2DToArray, _ptds, copy_on,
                 (cudaArray_t to, size_t x, size_t y, const void *from,
                  size_t pitch, size_t width, size_t height,
                  __attribute__((unused)) int kind),
                 to_array(to, x, y, from, pitch, width, height))
EXPORT_WITH_TWIN(cudaMemcpy2DFromArray, _ptds, copy_on,
                 (void *to, size_t pitch, cudaArray_t from, size_t x, size_t y,
                  size_t width, size_t height,
                  __attribute__((unused)) int kind),
                 from_array(to, pitch, from, x, y, width, height))
EXPORT_WITH_TWIN(cudaMemcpy2DToArrayAsync, _ptsz, copy_async_on,
                 (cudaArray_t to, size_t x, size_t y, const void *from,
                  size_t pitch, size_t width, size_t height,
                  __attribute__((unused)) int kind, cudaStream_t stream),
                 to_array(to, x, y, from, pitch, width, height), stream)
EXPORT_WITH_TWIN(cudaMemcpy2DFromArrayAsync, _ptsz, copy_async_on,
                 (void *to, size_t pitch, cudaArray_t from, size_t x, size_t y,
                  size_t width, size_t height,
                  __attribute__((unused)) int kind, cudaStream_t stream),
                 from_array(to, pitch, from, x, y, width, height), stream)
