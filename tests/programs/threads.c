/*
 * Threads that never set a device or made a context allocate and free; memory
 * of one device is freed with another current, or none; threads end with
 * blocks live that others free.
 */
#include "gpu.h"

#include <pthread.h>

enum { BLOCKS = 8 };

static const size_t size = (size_t)64 << 20;

struct job {
    void *blocks[BLOCKS];
    int set, codes[BLOCKS], last_error;
};

static void *allocate_all(void *argument) {
    struct job *job = argument;
    if (job->set)
        GPU(gpu_set_device(1));
    for (int i = 0; i < BLOCKS; i++)
        job->codes[i] = gpu_malloc(&job->blocks[i], size);
    job->last_error = gpu_last_error();
    return NULL;
}

static void *free_all(void *argument) {
    struct job *job = argument;
    for (int i = 0; i < BLOCKS; i++)
        job->codes[i] = gpu_free(job->blocks[i]);
    job->last_error = gpu_last_error();
    return NULL;
}

static void in_thread(void *(*what)(void *), struct job *job) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, job) || pthread_join(thread, NULL))
        exit(1);
}

static void tell(const char *what, const struct job *job) {
    int wrong = 0;
    for (int i = 1; i < BLOCKS; i++)
        wrong += job->codes[i] != job->codes[0];
    printf("%s: %d, others %d, last error %d\n", what, job->codes[0], wrong,
           job->last_error);
}

static size_t available(int device) {
    size_t now, total;
    GPU(gpu_set_device(device));
    GPU(gpu_mem_info(&now, &total));
    return now >> 20;
}

int main(void) {
    struct job job = {.set = 0};
    int devices = 0;
    GPU(gpu_count(&devices));
    GPU(gpu_set_device(0));
    size_t before = available(0);
    in_thread(allocate_all, &job);
    tell("allocated without a device", &job);
    int code = job.codes[0];
    if (!code) {
        GPU(gpu_set(job.blocks[3], 1, size));
        printf("on device 0: %d\n", available(0) + 8 * 64 <= before);
        free_all(&job);
        tell("freed by another thread", &job);
    }
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_malloc(&job.blocks[i], size));
    in_thread(free_all, &job);
    tell("freed without a device", &job);
    GPU(gpu_sync());
    printf("came back: %d\n", available(0) + 64 >= before);
    if (devices < 2)
        return 0;

    size_t other = available(1);
    job.set = 1;
    in_thread(allocate_all, &job);
    tell("allocated on device 1", &job);
    printf("device 1 fell: %d, device 0 did not: %d\n",
           available(1) + 8 * 64 <= other, available(0) + 64 >= before);
    GPU(gpu_set_device(0));
    free_all(&job);
    tell("freed with device 0 current", &job);
    GPU(gpu_set_device(1));
    GPU(gpu_sync());
    printf("device 1 came back: %d, device 0 is as it was: %d\n",
           available(1) + 64 >= other,
           available(0) + 64 >= before && available(0) <= before + 64);
    /* What was freed on device 1 serves device 1 alone. */
    for (int i = 0; i < BLOCKS; i++) {
        GPU(gpu_set_device(i % 2));
        GPU(gpu_malloc(&job.blocks[i], size));
        GPU(gpu_set(job.blocks[i], i, size));
        GPU(gpu_sync());
    }
    printf("each fell by half: %d\n",
           available(0) + 4 * 64 <= before && available(1) + 4 * 64 <= other &&
               available(0) + 5 * 64 >= before &&
               available(1) + 5 * 64 >= other);
    free_all(&job);
    return 0;
}
