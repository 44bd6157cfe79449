/* A plugin that uses CUDA; SIGN tells one build of it from another. */
#include "calls.h"

#ifndef SIGN
#define SIGN 0
#endif

int use(void) {
    void *block = NULL;
    int code = cudaFree(NULL);
    if (!code)
        code = cudaMalloc(&block, 1 << 20);
    if (!code)
        code = cudaFree(block);
    return code ? -code : SIGN;
}
