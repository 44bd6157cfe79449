/* As much of a CUDA runtime as a program needs for an allocation. SIGN tells
 * one from another. */
#ifndef SIGN
#define SIGN 0
#endif

int cudaMalloc(void **address, unsigned long size) {
    *address = (void *)(size + SIGN);
    return 0;
}
