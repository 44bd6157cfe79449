/*
 * Reads on the host what a copy brings, and instead of synchronising relies on
 * cudaFree, which waits for the device: a kernel writes a buffer, the buffer is
 * copied to page-locked memory, all on a stream of its own, and then freed; with
 * `captured`, while another stream captures a graph in the relaxed mode.
 * Prints the word that is there after the free, and after a synchronisation.
 */
#include "gpu.h"

enum { WORDS = 1024 };

static const uint64_t kernel_ns = 50 * 1000 * 1000;

int main(int argc, char **argv) {
    int is_captured = argc > 1 && !strcmp(argv[1], "captured");
    gpu_stream stream, other;
    gpu_graph graph;
    void *buffer, *host;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_stream_create(&other));
    GPU(gpu_host_alloc(&host, WORDS * sizeof(uint32_t), 0));
    GPU(gpu_malloc(&buffer, WORDS * sizeof(uint32_t)));
    volatile uint32_t *word = host;
    *word = 1;
    GPU(gpu_fill(stream, buffer, 2, WORDS, kernel_ns));
    GPU(gpu_copy_unified(host, buffer, WORDS * sizeof(uint32_t), stream));
    if (is_captured)
        GPU(gpu_capture_begin(other, GPU_CAPTURE_RELAXED));
    GPU(gpu_free(buffer));
    printf("after the free: %u\n", (unsigned)*word);
    if (is_captured)
        GPU(gpu_capture_end(other, &graph));
    GPU(gpu_sync());
    printf("after a synchronisation: %u\n", (unsigned)*word);
    GPU(gpu_free_host(host));
    return 0;
}
