/*
 * A host function of a stream frees memory, while another thread's free waits for the
 * device and so for that function. It ends, whatever it is answered. Arguments: what the
 * function frees (`device` or `host`), and `captured` if another stream captures a graph
 * meanwhile, in the relaxed mode, or `large` if what the other thread frees is.
 */
#include "gpu.h"

#include "find.h"

#include <pthread.h>
#include <unistd.h>

enum { SIZE = 5000, LARGE = 32 << 20 };

static const uint64_t kernel_ns = 1000 * 1000;

static gpu_stream stream;
static void *freed_there;
static int is_host;

static void in_stream(void *unused) {
    (void)unused;
    if (is_host)
        gpu_free_host(freed_there);
    else
        gpu_free(freed_there);
}

static void *synchronizes(void *unused) {
    (void)unused;
    GPU(gpu_set_device(0));
    /* Later than the free of the first thread begins. */
    usleep(150 * 1000);
    GPU(gpu_stream_sync(stream));
    return NULL;
}

int main(int argc, char **argv) {
    int (*launch)(gpu_stream, void (*)(void *), void *) =
        (int (*)(gpu_stream, void (*)(void *), void *))find("cuLaunchHostFunc");
    int is_captured = argc > 2 && !strcmp(argv[2], "captured");
    int is_large = argc > 2 && !strcmp(argv[2], "large");
    pthread_t thread;
    gpu_stream other;
    gpu_graph graph;
    void *freed_here;
    is_host = argc > 1 && !strcmp(argv[1], "host");
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_stream_create(&other));
    GPU(gpu_malloc(&freed_here, is_large ? LARGE : SIZE));
    if (is_host)
        GPU(gpu_host_alloc(&freed_there, SIZE, 0));
    else
        GPU(gpu_malloc(&freed_there, SIZE));
    GPU(gpu_fill(stream, freed_here, 1, SIZE / sizeof(uint32_t), kernel_ns));
    GPU(launch(stream, in_stream, NULL));
    if (is_captured)
        GPU(gpu_capture_begin(other, GPU_CAPTURE_RELAXED));
    if (pthread_create(&thread, NULL, synchronizes, NULL))
        return 1;
    usleep(50 * 1000);
    GPU(gpu_free(freed_here));
    if (pthread_join(thread, NULL))
        return 1;
    if (is_captured)
        GPU(gpu_capture_end(other, &graph));
    puts("ended");
    return 0;
}
