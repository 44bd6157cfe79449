/*
 * A pool as it is written in an afternoon, so that the hazard suite can be
 * seen to fail: freed blocks are handed out at once, free lists know sizes
 * and nothing else, nobody watches captures or contexts, memory handles for
 * other processes are passed on as they come, and dlsym is hooked by name.
 *
 * NAIVE_POOL=waits makes each reuse wait for an event over the whole context
 * first: safe against late kernels, fatal to captures.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

enum { CLASSES = 48, SMALLEST = 9, MOST_POOLED = 26, KNOWN = 1 << 16 };

static const size_t chunk = (size_t)1 << 27;

/* Recursive: the driver may call back into the program below it. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* Of device memory, and of page-locked memory of the host. */
static struct pool {
    const char *take, *give;
    /* For the host, the last argument means all contexts. */
    int (*taken_by)(address *, size_t, unsigned);
    address free_blocks[CLASSES][KNOWN];
    int free_count[CLASSES];
    struct { address at; int class; } known[KNOWN];
    int known_count;
    address bump, bump_end;
} device = {.take = "cuMemAlloc_v2", .give = "cuMemFree_v2"},
  host = {.take = "cuMemHostAlloc", .give = "cuMemFreeHost"};

typedef void *(*dlsym_fn)(void *, const char *);

static dlsym_fn real_dlsym(void) {
    static dlsym_fn real;
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real;
}

static void *real(const char *name) {
    static void *driver;
    if (!driver)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? real_dlsym()(driver, name) : NULL;
}

static int class_of(size_t size) {
    int class = SMALLEST;
    while (((size_t)1 << class) < size)
        class++;
    return class;
}

/* Waits until the device has done what it was given so far. */
static void wait_first(void) {
    static int (*make)(void **, unsigned), (*wait)(void *);
    static int (*record)(void *, void *), (*current)(void **);
    const char *how = getenv("NAIVE_POOL");
    void *event = NULL, *context = NULL;
    if (!how || strcmp(how, "waits"))
        return;
    *(void **)&make = real("cuEventCreate");
    *(void **)&record = real("cuCtxRecordEvent");
    *(void **)&current = real("cuCtxGetCurrent");
    *(void **)&wait = real("cuEventSynchronize");
    if (make && record && current && wait && !current(&context) &&
        !make(&event, 2) && !record(context, event))
        wait(event);
}

static int allocate(struct pool *pool, address *out, size_t size) {
    int class, code = 0;
    if (!pool->taken_by)
        *(void **)&pool->taken_by = real(pool->take);
    if (!pool->taken_by)
        return 35;
    if (!out || !size || size > (size_t)1 << MOST_POOLED)
        return pool->taken_by(out, size, 1);
    class = class_of(size);
    pthread_mutex_lock(&lock);
    if (pool->free_count[class]) {
        *out = pool->free_blocks[class][--pool->free_count[class]];
        wait_first();
    } else {
        size_t rounded = (size_t)1 << class;
        if (pool->bump + rounded > pool->bump_end) {
            code = pool->taken_by(&pool->bump, chunk, 1);
            pool->bump_end = code ? 0 : pool->bump + chunk;
            pool->bump = code ? 0 : pool->bump;
        }
        if (!code) {
            *out = pool->bump;
            pool->bump += rounded;
            if (pool->known_count < KNOWN) {
                pool->known[pool->known_count].at = *out;
                pool->known[pool->known_count++].class = class;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int release(struct pool *pool, address at) {
    int (*give)(address);
    int class = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < pool->known_count && !class; i++)
        class = pool->known[i].at == at ? pool->known[i].class : 0;
    if (class && pool->free_count[class] < KNOWN)
        pool->free_blocks[class][pool->free_count[class]++] = at;
    pthread_mutex_unlock(&lock);
    if (class)
        return 0;
    *(void **)&give = real(pool->give);
    return give ? give(at) : 35;
}

/* The context is made by whatever the runtime does first of all. */
static int for_runtime(struct pool *pool, void **to, size_t size) {
    static int (*first)(void *);
    address at = 0;
    if (!first)
        *(void **)&first = real_dlsym()(RTLD_NEXT, "cudaFree");
    if (first)
        first(NULL);
    if (!to)
        return 1;
    if (!size) {
        *to = NULL;
        return 0;
    }
    int code = allocate(pool, &at, size);
    if (!code)
        *to = (void *)(uintptr_t)at;
    return code;
}

int cudaMalloc(void **to, size_t size) {
    return for_runtime(&device, to, size);
}

int cudaFree(void *block) {
    return block ? release(&device, (uintptr_t)block) : 0;
}

int cudaMallocHost(void **to, size_t size) {
    return for_runtime(&host, to, size);
}

int cudaHostAlloc(void **to, size_t size, unsigned flags) {
    (void)flags;
    return for_runtime(&host, to, size);
}

int cudaFreeHost(void *block) {
    return block ? release(&host, (uintptr_t)block) : 0;
}

int cuMemAlloc_v2(address *to, size_t size) {
    return allocate(&device, to, size);
}

int cuMemFree_v2(address block) { return release(&device, block); }

int cuMemAllocHost_v2(address *to, size_t size) {
    return allocate(&host, to, size);
}

int cuMemHostAlloc(address *to, size_t size, unsigned flags) {
    (void)flags;
    return allocate(&host, to, size);
}

int cuMemFreeHost(address block) { return release(&host, block); }

static const struct { const char *name; void *ours; } hooks[] = {
    {"cuMemAlloc_v2", (void *)cuMemAlloc_v2},
    {"cuMemFree_v2", (void *)cuMemFree_v2},
    {"cuMemAllocHost_v2", (void *)cuMemAllocHost_v2},
    {"cuMemHostAlloc", (void *)cuMemHostAlloc},
    {"cuMemFreeHost", (void *)cuMemFreeHost},
};

void *dlsym(void *handle, const char *name) {
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
        if (!strcmp(name, hooks[i].name))
            return hooks[i].ours;
    return real_dlsym()(handle, name);
}
