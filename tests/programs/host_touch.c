/*
 * Takes 64 MiB of page-locked memory in one piece, looks that it is usable, and
 * tells how many threads were started meanwhile: whoever starts one comes by
 * the pthread_create below.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>

static int started;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                   void *(*work)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    __atomic_add_fetch(&started, 1, __ATOMIC_RELAXED);
    return real(thread, attributes, work, argument);
}

int main(void) {
    const size_t size = (size_t)64 << 20;
    void *host, *device;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&device, size));
    int before = started;
    GPU(gpu_host_alloc(&host, size, 0));
    printf("threads started: %d\n", started - before);
    GPU(gpu_copy_unified(device, host, size, NULL));
    GPU(gpu_sync());
    GPU(gpu_free_host(host));
    GPU(gpu_free(device));
    return 0;
}
