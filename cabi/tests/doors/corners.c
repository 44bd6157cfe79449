/*
 * Corners of the driver's memory and context functions: what they return for
 * odd arguments, at the ends of contexts, and to which caller. Prints a line
 * for each, the same with the library and without, but for handles.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long address;

static void *driver;

/* Declares NAME as a pointer to the driver's function of that name. */
#define DRIVER(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))need(#name)

static void *need(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) {
        printf("no %s\n", name);
        exit(1);
    }
    return found;
}

static void arguments(void) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    DRIVER(cuMemFree_v2, address);
    DRIVER(cuMemGetInfo_v2, size_t *, size_t *);
    DRIVER(cuMemAllocPitch_v2, address *, size_t *, size_t, size_t, unsigned);
    address block = 0, other = 0;
    size_t size = 0, pitch = 0;
    printf("no bytes: %d\n", cuMemAlloc_v2(&block, 0));
    printf("nowhere to: %d\n", cuMemAlloc_v2(NULL, 512));
    printf("some: %d\n", cuMemAlloc_v2(&block, 1000));
    printf("inside: %d\n", cuMemFree_v2(block + 512));
    printf("free: %d\n", cuMemFree_v2(block));
    printf("again: %d\n", cuMemFree_v2(block));
    printf("null: %d\n", cuMemFree_v2(0));
    printf("total alone: %d\n", cuMemGetInfo_v2(NULL, &size));
    printf("rows: %d", cuMemAllocPitch_v2(&other, &pitch, 100, 7, 4));
    printf(" of %zu bytes\n", pitch);
    printf("rows of nothing: %d\n", cuMemAllocPitch_v2(&block, &pitch, 0, 7, 4));
    printf("rows of odd elements: %d\n", cuMemAllocPitch_v2(&block, &pitch, 100, 7, 5));
    printf("free rows: %d\n", cuMemFree_v2(other));
}

static void handles(void) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    DRIVER(cuMemFree_v2, address);
    DRIVER(cuMemGetAddressRange_v2, address *, size_t *, address);
    DRIVER(cuIpcGetMemHandle, void *, address);
    enum { BLOCKS = 8 };
    address block[BLOCKS], base;
    size_t size;
    char handle[64];
    int wrong = 0, given = 0;
    for (int i = 0; i < BLOCKS; i++) {
        cuMemAlloc_v2(&block[i], 4096);
        cuMemGetAddressRange_v2(&base, &size, block[i]);
        int result = cuIpcGetMemHandle(handle, block[i]);
        given += result == 0;
        /* A handle that would show another process the wrong bytes. */
        wrong += result == 0 && base != block[i];
    }
    printf("handles: %s\n", given == BLOCKS ? "all" : "not all");
    printf("handles to the wrong bytes: %d\n", wrong);
    for (int i = 0; i < BLOCKS; i++)
        cuMemFree_v2(block[i]);
}

static void *free_elsewhere(void *block) {
    DRIVER(cuMemFree_v2, address);
    return (void *)(size_t)cuMemFree_v2((address)block);
}

static void streams(void) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    DRIVER(cuMemFree_v2, address);
    DRIVER(cuMemFreeAsync, address, void *);
    DRIVER(cuStreamCreate, void **, unsigned);
    DRIVER(cuStreamDestroy_v2, void *);
    DRIVER(cuStreamBeginCapture_v2, void *, int);
    DRIVER(cuStreamEndCapture, void *, void **);
    DRIVER(cuStreamSynchronize, void *);
    void *stream, *graph = NULL;
    address block;
    cuStreamCreate(&stream, 1);
    cuMemAlloc_v2(&block, 1 << 20);
    printf("free in order of a stream: %d\n", cuMemFreeAsync(block, stream));
    printf("done: %d\n", cuStreamSynchronize(stream));

    printf("end before the beginning: %s\n", cuStreamEndCapture(stream, &graph) ? "fails" : "0");
    printf("begin: %d\n", cuStreamBeginCapture_v2(stream, 2));
    printf("begin twice: %s\n", cuStreamBeginCapture_v2(stream, 2) ? "fails" : "0");
    int served = 0;
    for (int i = 0; i < 16; i++) {
        served += cuMemAlloc_v2(&block, 3 << 20) == 0;
        cuMemFree_v2(block);
    }
    printf("served meanwhile: %d\n", served);
    printf("end: %d\n", cuStreamEndCapture(stream, &graph));
    for (int i = 0; i < 16; i++) {
        served += cuMemAlloc_v2(&block, 3 << 20) == 0;
        cuMemFree_v2(block);
    }
    printf("served afterwards: %d\n", served - 16);
    cuStreamDestroy_v2(stream);
}

/* Contexts that end, one after the other: the handle may come back. */
static void contexts(void) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    DRIVER(cuMemFree_v2, address);
    DRIVER(cuCtxCreate_v2, void **, unsigned, int);
    DRIVER(cuCtxDestroy_v2, void *);
    DRIVER(cuCtxPushCurrent_v2, void *);
    DRIVER(cuCtxPopCurrent_v2, void **);
    void *context, *other, *popped;
    address block, theirs;
    for (int i = 0; i < 3; i++) {
        cuCtxCreate_v2(&context, 0, 0);
        printf("in a new context: %d", cuMemAlloc_v2(&block, 5000));
        printf(", ended: %d", cuCtxDestroy_v2(context));
        printf(", its memory: %d\n", cuMemFree_v2(block));
    }
    cuCtxCreate_v2(&context, 0, 0);
    cuMemAlloc_v2(&block, 5000);
    cuCtxCreate_v2(&other, 0, 0);
    cuMemAlloc_v2(&theirs, 5000);
    printf("two contexts, the same memory: %d\n", block == theirs);
    printf("free from the other context: %d\n", cuMemFree_v2(block));
    cuCtxPopCurrent_v2(&popped);
    cuCtxPushCurrent_v2(context);
    printf("and back: %d\n", cuMemFree_v2(theirs));
    cuCtxPopCurrent_v2(&popped);
    cuCtxDestroy_v2(other);
    cuCtxDestroy_v2(context);
}

/* A primary context ends with its last user. */
static void primary(void) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    DRIVER(cuMemFree_v2, address);
    DRIVER(cuCtxSetCurrent, void *);
    DRIVER(cuDevicePrimaryCtxRetain, void **, int);
    DRIVER(cuDevicePrimaryCtxRelease_v2, int);
    DRIVER(cuDevicePrimaryCtxReset_v2, int);
    void *context;
    address block;
    pthread_t thread;
    void *result = NULL;
    cuDevicePrimaryCtxRetain(&context, 0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    printf("in the primary context: %d\n", cuMemAlloc_v2(&block, 5000));
    printf("one user less: %d", cuDevicePrimaryCtxRelease_v2(0));
    printf(", its memory: %d\n", cuMemFree_v2(block));
    streams();
    cuMemAlloc_v2(&block, 5000);
    pthread_create(&thread, NULL, free_elsewhere, (void *)block);
    pthread_join(thread, &result);
    printf("free without a context: %zu\n", (size_t)result);
    pthread_create(&thread, NULL, free_elsewhere, (void *)block);
    pthread_join(thread, &result);
    printf("and again: %zu\n", (size_t)result);
    cuMemAlloc_v2(&block, 5000);
    pthread_create(&thread, NULL, free_elsewhere, (void *)(block + 512));
    pthread_join(thread, &result);
    printf("an inner address: %zu\n", (size_t)result);
    printf("which is live: %d\n", cuMemFree_v2(block));
    cuMemAlloc_v2(&block, 5000);
    printf("reset: %d", cuDevicePrimaryCtxReset_v2(0));
    printf(", its memory: %s\n", cuMemFree_v2(block) ? "gone" : "there");
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    printf("after the reset: %d", cuMemAlloc_v2(&block, 5000));
    printf(" %d\n", cuMemFree_v2(block));
    cuMemAlloc_v2(&block, 5000);
    while (cuDevicePrimaryCtxRelease_v2(0) == 0)
        ;
    printf("no user left, its memory: %s\n", cuMemFree_v2(block) ? "gone" : "there");
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        printf("%s\n", dlerror());
        return 1;
    }
    DRIVER(cuInit, unsigned);
    DRIVER(cuMemAlloc_v2, address *, size_t);
    DRIVER(cuCtxCreate_v2, void **, unsigned, int);
    DRIVER(cuCtxDestroy_v2, void *);
    address block;
    void *context;
    printf("before cuInit: %d\n", cuMemAlloc_v2(&block, 512));
    cuInit(0);
    printf("without a context: %d\n", cuMemAlloc_v2(&block, 512));
    cuCtxCreate_v2(&context, 0, 0);
    arguments();
    handles();
    cuCtxDestroy_v2(context);
    contexts();
    primary();
    return 0;
}
