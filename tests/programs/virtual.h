/*
 * CUDA's functions for virtual memory, by the driver, for the programs that measure
 * what they do: a range of addresses and units of memory to map into it.
 */
#ifndef PROGRAMS_VIRTUAL_H
#define PROGRAMS_VIRTUAL_H

#include "facts.h"
#include "find.h"

typedef unsigned long long address;

struct location { int kind, id; };
struct access { struct location location; int flags; };
struct properties {
    int kind, handles;
    struct location location;
    void *security;
    unsigned char flags[8];
    char rest[56];
};

enum { OF_DEVICE = 1, OF_HOST_NODE = 3, SUPPORTED = 102 };

static struct {
    int (*attribute)(int *, int, int);
    int (*granularity)(size_t *, const struct properties *, int);
    int (*reserve)(address *, size_t, size_t, address, uint64_t);
    int (*unreserve)(address, size_t);
    int (*create)(uint64_t *, size_t, const struct properties *, uint64_t);
    int (*release)(uint64_t);
    int (*map)(address, size_t, size_t, uint64_t, uint64_t);
    int (*admit)(address, size_t, const struct access *, size_t);
    int (*unmap)(address, size_t);
    int (*range)(address *, size_t *, address);
    int (*handle)(void *, address);
    int (*exchange_mode)(int *);
} driver;

static const struct properties properties = {.kind = 1, .location = {OF_DEVICE, 0}};
static const struct access all = {.location = {OF_DEVICE, 0}, .flags = 3};
/* The granularity that the driver recommends, and the addresses. */
static size_t unit;
static address range;

static inline void find_virtual(void) {
    *(void **)&driver.attribute = find("cuDeviceGetAttribute");
    *(void **)&driver.granularity = find("cuMemGetAllocationGranularity");
    *(void **)&driver.reserve = find("cuMemAddressReserve");
    *(void **)&driver.unreserve = find("cuMemAddressFree");
    *(void **)&driver.create = find("cuMemCreate");
    *(void **)&driver.release = find("cuMemRelease");
    *(void **)&driver.map = find("cuMemMap");
    *(void **)&driver.admit = find("cuMemSetAccess");
    *(void **)&driver.unmap = find("cuMemUnmap");
    *(void **)&driver.range = find("cuMemGetAddressRange_v2");
    *(void **)&driver.handle = find("cuIpcGetMemHandle");
    *(void **)&driver.exchange_mode = find("cuThreadExchangeStreamCaptureMode");
}

/* Whether device 0 has them. */
static inline int has_virtual(void) {
    int has = 0;
    find_virtual();
    GPU(driver.attribute(&has, SUPPORTED, 0));
    return has;
}

static inline address at(int place) { return range + (size_t)place * unit; }

static inline int admit(int place, int count) {
    return driver.admit(at(place), (size_t)count * unit, &all, 1);
}

static inline int unmap(int place, int count) {
    return driver.unmap(at(place), (size_t)count * unit);
}

static inline long long available(void) {
    size_t now;
    GPU(gpu_mem_info(&now, NULL));
    return (long long)now;
}

#endif
