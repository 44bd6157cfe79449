/*
 * Meets errors of the device where they surface: in a synchronisation, a copy
 * or an allocation, once or from then on (the run says by the environment of
 * the simulated driver which call fails). Says each code and the last error
 * after it, keeps going, and leaves by its own way.
 */
#include "gpu.h"

static void tell(const char *what, int code) {
    printf("%s: %d, last error %d", what, code, gpu_last_error());
    printf(" then %d\n", gpu_last_error());
}

int main(void) {
    gpu_stream stream;
    void *block = NULL, *other = NULL;
    uint32_t word = 7;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&block, 1 << 20));
    for (int round = 0; round < 3; round++) {
        tell("launch", gpu_fill(stream, block, 9, 1 << 18, 100000));
        tell("stream", gpu_stream_sync(stream));
        tell("copy", gpu_copy_out(&word, block, sizeof word));
        tell("device", gpu_sync());
        other = NULL;
        /* Larger each time than anything that may be kept. */
        int code = gpu_malloc(&other, (size_t)(2 + round) << 30);
        tell("allocate", code);
        if (!code)
            tell("free", gpu_free(other));
    }
    tell("free", gpu_free(block));
    return 6;
}
