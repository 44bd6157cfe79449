/*
 * Reads on the host what a copy brings, and instead of synchronising relies on
 * cudaFree, which waits for the device: a kernel writes a buffer, the buffer is
 * copied to page-locked memory, all on a stream of its own, and then freed.
 * Prints the words that are there after three frees, and after a synchronisation.
 * Arguments: `captured` (another stream captures a graph meanwhile, in the relaxed
 * mode), `touched` (a second device has a context), `busy` (and works for long).
 */
#include "gpu.h"

enum { WORDS = 1024, ROUNDS = 3 };

static const uint64_t kernel_ns = 50 * 1000 * 1000;
static const uint64_t long_ns = 20 * 1000 * 1000 * 1000ull;

static int is_given(int argc, char **argv, const char *word) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], word))
            return 1;
    return 0;
}

static void use_second_device(int is_busy) {
    gpu_stream stream;
    void *buffer;
    GPU(gpu_set_device(1));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&buffer, WORDS * sizeof(uint32_t)));
    if (is_busy)
        GPU(gpu_fill(stream, buffer, 1, WORDS, long_ns));
}

int main(int argc, char **argv) {
    int is_captured = is_given(argc, argv, "captured");
    int is_busy = is_given(argc, argv, "busy");
    gpu_stream stream, other;
    gpu_graph graph;
    void *buffers[ROUNDS], *host;
    if (is_busy || is_given(argc, argv, "touched"))
        use_second_device(is_busy);
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_stream_create(&other));
    GPU(gpu_host_alloc(&host, WORDS * sizeof(uint32_t), 0));
    for (int round = 0; round < ROUNDS; round++)
        GPU(gpu_malloc(&buffers[round], WORDS * sizeof(uint32_t)));
    volatile uint32_t *word = host;
    *word = 1;
    if (is_captured)
        GPU(gpu_capture_begin(other, GPU_CAPTURE_RELAXED));
    for (int round = 0; round < ROUNDS; round++) {
        void *buffer = buffers[round];
        GPU(gpu_fill(stream, buffer, 2 + round, WORDS, kernel_ns));
        GPU(gpu_copy_unified(host, buffer, WORDS * sizeof(uint32_t), stream));
        GPU(gpu_free(buffer));
        printf("after a free: %u\n", (unsigned)*word);
    }
    if (is_captured)
        GPU(gpu_capture_end(other, &graph));
    GPU(gpu_sync());
    printf("after a synchronisation: %u\n", (unsigned)*word);
    GPU(gpu_free_host(host));
    return 0;
}
