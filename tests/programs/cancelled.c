/*
 * Threads that were cancelled before they ask for memory: they get what they
 * ask for, and end at the next point at which they let themselves be
 * cancelled.
 */
#include "gpu.h"

#include <pthread.h>

static int reached;

static void *work(void *argument) {
    void *device, *host, *more = NULL;
    size_t available, total;
    gpu_stream stream;
    (void)argument;
    GPU(gpu_set_device(0));
    pthread_cancel(pthread_self());
    GPU(gpu_malloc(&device, 1 << 20));
    GPU(gpu_malloc_host(&host, 5000));
    GPU(gpu_mem_info(&available, &total));
    int code = gpu_malloc(&more, total * 2);
    GPU(gpu_stream_create(&stream));
    GPU(gpu_stream_destroy(stream));
    GPU(gpu_free(device));
    GPU(gpu_free_host(host));
    reached += code == GPU_OUT_OF_MEMORY;
    pthread_testcancel();
    reached += 100;
    return NULL;
}

int main(void) {
    int cancelled = 0;
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, work, NULL) ||
            pthread_join(thread, &result))
            return 1;
        cancelled += result == PTHREAD_CANCELED;
    }
    printf("reached the end: %d, cancelled there: %d\n", reached, cancelled);
    return 0;
}
