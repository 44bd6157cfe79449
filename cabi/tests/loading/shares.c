/*
 * A plugin whose work goes wrong if memory is served while the end of a
 * context, a handle for another process, or a capture goes unnoticed. Returns
 * which of them went wrong, a bit each.
 */
#include "calls.h"

#include <string.h>

enum { HANDLE = 1, RESET = 2, CAPTURE = 4, FAILED = 8 };

enum { RELAXED = 2, SIZE = 1 << 20 };

int use(void) {
    void *blocks[2], *stream, *graph;
    struct handle handles[2];
    size_t available, total;
    int wrong = 0;
    for (int i = 0; i < 2; i++) {
        if (cudaMalloc(&blocks[i], SIZE))
            return FAILED;
        if (cudaIpcGetMemHandle(&handles[i], blocks[i]))
            return FAILED;
    }
    if (!memcmp(&handles[0], &handles[1], sizeof handles[0]))
        wrong |= HANDLE;
    cudaMemGetInfo(&available, &total);
    for (int i = 0; i < 2; i++)
        cudaFree(blocks[i]);
    cudaDeviceReset();
    for (int i = 0; i < 2; i++)
        if (cudaMalloc(&blocks[i], SIZE) || cudaMemset(blocks[i], 1, SIZE))
            wrong |= RESET;
    if (cudaStreamCreateWithFlags(&stream, 1))
        return FAILED;
    if (cudaStreamBeginCapture(stream, RELAXED) ||
        cudaMemsetAsync(blocks[0], 1, SIZE, stream))
        return FAILED;
    for (int i = 0; i < 64; i++) {
        void *more;
        if (cudaMalloc(&more, (size_t)8 << 20) || cudaFree(more))
            wrong |= CAPTURE;
    }
    if (cudaStreamEndCapture(stream, &graph))
        wrong |= CAPTURE;
    return wrong;
}
