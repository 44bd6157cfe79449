/*
 * Another context of the device has no memory. The program fills the device, frees one
 * page of it, begins a capture and allocates the page again: it is there, whatever a
 * capture needs. In the end it allocates a little of that page in the other context.
 *
 * Exit: 0 right, 1 something failed, 3 the page was not there.
 */
#include "gpu.h"

#include "beside.h"

static const size_t page = 2 << 20;

int main(void) {
    gpu_stream stream;
    int (*set)(void *);
    void *small, *block, *other, *last = NULL;
    int missing = 0;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    *(void **)&set = find("cuCtxSetCurrent");
    other = make_context_beside();
    GPU(gpu_malloc(&small, 1000));
    while (!gpu_malloc(&block, page))
        last = block;
    gpu_last_error();
    for (int round = 0; round < 3; round++) {
        gpu_graph graph;
        GPU(gpu_free(last));
        GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
        missing += gpu_malloc(&last, page) != 0;
        GPU(gpu_capture_end(stream, &graph));
        if (missing && gpu_malloc(&last, page))
            return 1;
    }
    GPU(gpu_free(last));
    GPU(set(other));
    missing += gpu_malloc(&block, 4096) != 0;
    printf("missing: %d\n", missing);
    return missing ? 3 : 0;
}
