/*
 * Allocates page-locked memory of many sizes while a kernel runs. No allocation
 * may wait for the kernel: its end could hang on what this thread does next.
 *
 * Exit: 0 none waited, 3 one did, 1 something failed.
 */
#include "gpu.h"

static const uint64_t kernel_ns = 500 * 1000 * 1000;

static const size_t sizes[] = {100,     65536,   1 << 20, 3 << 20,
                               9 << 20, 1 << 20, 40 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes, WAYS = 3 };

int main(void) {
    void *blocks[WAYS][SIZES];
    gpu_stream stream;
    gpu_event event;
    int waited = 0;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_event_create(&event));
    for (unsigned way = 0; way < WAYS; way++) {
        GPU(gpu_spin(stream, kernel_ns));
        GPU(gpu_event_record(event, stream));
        for (int i = 0; i < SIZES; i++) {
            GPU(way ? gpu_host_alloc(&blocks[way][i], sizes[i], way)
                    : gpu_malloc_host(&blocks[way][i], sizes[i]));
            if (gpu_event_query(event) != GPU_NOT_READY) {
                printf("an allocation of %zu bytes waited\n", sizes[i]);
                waited = 3;
                break;
            }
        }
        if (waited)
            return waited;
        GPU(gpu_event_sync(event));
    }
    for (int way = 0; way < WAYS; way++)
        for (int i = 0; i < SIZES; i++)
            GPU(gpu_free_host(blocks[way][i]));
    GPU(gpu_event_destroy(event));
    GPU(gpu_stream_destroy(stream));
    return 0;
}
