/*
 * Reads on the host what a copy brings, and instead of synchronising relies on
 * cudaFree, which waits for the device: a kernel writes a buffer, the buffer is
 * copied to page-locked memory, all on a stream of its own, and then freed.
 * Prints the word that is there after the free, and after a synchronisation.
 */
#include "gpu.h"

enum { WORDS = 1024 };

static const uint64_t kernel_ns = 50 * 1000 * 1000;

int main(void) {
    gpu_stream stream;
    void *buffer, *host;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_host_alloc(&host, WORDS * sizeof(uint32_t), 0));
    GPU(gpu_malloc(&buffer, WORDS * sizeof(uint32_t)));
    volatile uint32_t *word = host;
    *word = 1;
    GPU(gpu_fill(stream, buffer, 2, WORDS, kernel_ns));
    GPU(gpu_copy_unified(host, buffer, WORDS * sizeof(uint32_t), stream));
    GPU(gpu_free(buffer));
    printf("after the free: %u\n", (unsigned)*word);
    GPU(gpu_sync());
    printf("after a synchronisation: %u\n", (unsigned)*word);
    GPU(gpu_free_host(host));
    return 0;
}
