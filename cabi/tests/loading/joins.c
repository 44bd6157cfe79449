/*
 * A library whose constructor waits for a thread that calls CUDA: meanwhile
 * the linker is busy with the library, and a thread that asks it for anything
 * waits for the constructor.
 */
#include "calls.h"

#include <pthread.h>
#include <stdio.h>

static void failed(const char *what, int code) {
    printf("%s %d, %d\n", what, code, cudaGetLastError());
}

static void *work(void *unused) {
    void *blocks[4] = {0}, *huge = NULL, *host = NULL;
    size_t total = 0;
    /* Served from cached memory, by the driver, and not at all. */
    printf("small %d\n", cudaMalloc(&blocks[0], 4096));
    printf("large %d\n", cudaMalloc(&blocks[1], (size_t)300 << 20));
    printf("another %d\n", cudaMalloc(&blocks[2], (size_t)1 << 30));
    failed("huge", cudaMalloc(&huge, (size_t)1 << 50));
    printf("nothing %d\n", cudaMalloc(&blocks[3], 0));
    printf("amount %d\n", cudaMemGetInfo(NULL, &total));
    printf("host %d\n", cudaMallocHost(&host, 4096));
    printf("free %d\n", cudaFreeHost(host));
    for (int i = 0; i < 4; i++)
        printf("free %d\n", cudaFree(blocks[i]));
    failed("again", cudaFree(blocks[0]));
    failed("foreign", cudaFree(&total));
    return unused;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t worker;
    pthread_create(&worker, NULL, work, NULL);
    pthread_join(worker, NULL);
}
