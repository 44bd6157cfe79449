/*
 * cudaGetDeviceProperties: the structure of each major version, filled from
 * the driver's attributes as far as programs commonly read it; the rest is
 * zero. Version 13 dropped eight fields of version 12.
 */
#include "runtime.h"

#include <assert.h>
#include <string.h>

#if CUDART_MAJOR == 12
#define ONLY_IN_12(field) field;
#else
#define ONLY_IN_12(field)
#endif

struct cudaDeviceProp {
    char name[256];
    CUuuid uuid;
    char luid[8];
    unsigned luid_node_mask;
    size_t total_global_memory;
    size_t shared_per_block;
    int registers_per_block;
    int warp_size;
    size_t memory_pitch;
    int threads_per_block;
    int block_extent[3];
    int grid_extent[3];
    ONLY_IN_12(int clock_khz)
    size_t constant_memory;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
    ONLY_IN_12(int device_overlap)
    int multiprocessors;
    ONLY_IN_12(int kernel_timeout)
    int integrated;
    int can_map_host_memory;
    ONLY_IN_12(int compute_mode)
    int textures_and_surfaces[CUDART_MAJOR == 12 ? 40 : 39];
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc;
    int pci_bus, pci_device, pci_domain;
    int tcc;
    int async_engines;
    int unified_addressing;
    ONLY_IN_12(int memory_clock_khz)
    int memory_bus_bits;
    int l2_bytes;
    int persisting_l2_bytes;
    int threads_per_multiprocessor;
    int stream_priorities;
    int global_l1, local_l1;
    size_t shared_per_multiprocessor;
    int registers_per_multiprocessor;
    int managed_memory;
    int multi_gpu_board, multi_gpu_board_group;
    int host_native_atomics;
    ONLY_IN_12(int single_to_double)
    int pageable_access;
    int concurrent_managed_access;
    int compute_preemption;
    int registered_host_pointer_usable;
    int cooperative_launch;
    ONLY_IN_12(int cooperative_multi_device)
    size_t shared_per_block_optin;
    int pageable_access_by_host_tables;
    int direct_managed_access;
    int blocks_per_multiprocessor;
    int access_policy_window;
    size_t reserved_shared_per_block;
    int host_register, sparse_arrays, host_register_read_only;
    int timeline_semaphores;
    int memory_pools;
};

/* What follows memory_pools differs between versions and stays untouched. */
enum {
    KNOWN = offsetof(struct cudaDeviceProp, memory_pools) + sizeof(int)
};

#if CUDART_MAJOR == 12
static_assert(offsetof(struct cudaDeviceProp, major) == 360, "layout of 12");
static_assert(offsetof(struct cudaDeviceProp, multiprocessors) == 388,
              "layout of 12");
static_assert(offsetof(struct cudaDeviceProp, memory_pools) == 744,
              "layout of 12");
#endif

static void fill(struct cudaDeviceProp *p, CUdevice device) {
    struct {
        int *field;
        int attribute;
    } ints[] = {
        {&p->threads_per_block, 1},      {&p->block_extent[0], 2},
        {&p->block_extent[1], 3},        {&p->block_extent[2], 4},
        {&p->grid_extent[0], 5},         {&p->grid_extent[1], 6},
        {&p->grid_extent[2], 7},         {&p->warp_size, 10},
        {&p->registers_per_block, 12},   {&p->multiprocessors, 16},
        {&p->can_map_host_memory, 19},   {&p->concurrent_kernels, 31},
        {&p->memory_bus_bits, 37},       {&p->l2_bytes, 38},
        {&p->pci_bus, 33},               {&p->pci_device, 34},
        {&p->threads_per_multiprocessor, 39},
        {&p->async_engines, 40},         {&p->unified_addressing, 41},
        {&p->pci_domain, 50},
        {&p->major, 75},                 {&p->minor, 76},
        {&p->stream_priorities, 78},     {&p->registers_per_multiprocessor, 82},
        {&p->managed_memory, 83},        {&p->cooperative_launch, 95},
        {&p->blocks_per_multiprocessor, 106}, {&p->memory_pools, 115},
    };
    struct {
        size_t *field;
        int attribute;
    } sizes[] = {
        {&p->shared_per_block, 8},       {&p->constant_memory, 9},
        {&p->memory_pitch, 11},          {&p->texture_alignment, 14},
        {&p->shared_per_multiprocessor, 81},
        {&p->shared_per_block_optin, 97},
    };
    int value;
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        if (!DRIVER(cuDeviceGetAttribute)(&value, ints[i].attribute, device))
            *ints[i].field = value;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!DRIVER(cuDeviceGetAttribute)(&value, sizes[i].attribute, device))
            *sizes[i].field = (size_t)value;
}

static cudaError_t properties(struct cudaDeviceProp *p, int ordinal) {
    CUdevice device;
    cudaError_t code = simrt_need_driver();
    if (code)
        return code;
    if (!p)
        return cudaErrorInvalidValue;
    int count = 0;
    code = DRIVER(cuDeviceGetCount)(&count);
    if (code)
        return code;
    if (ordinal < 0 || ordinal >= count)
        return cudaErrorInvalidDevice;
    code = DRIVER(cuDeviceGet)(&device, ordinal);
    if (code)
        return code;
    memset(p, 0, KNOWN);
    code = DRIVER(cuDeviceGetName)(p->name, sizeof p->name, device);
    if (!code)
        code = DRIVER(cuDeviceTotalMem)(&p->total_global_memory, device);
    DRIVER(cuDeviceGetUuid)(&p->uuid, device);
    fill(p, device);
    return code;
}

#if CUDART_MAJOR == 12
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int device) {
    return simrt_record(properties(p, device));
}
#else
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    return simrt_record(properties(p, device));
}
#endif
