/* As much of a CUDA runtime as a program needs to be served by it. */
int cudaMalloc(void **address, unsigned long size) {
    *address = (void *)size;
    return 0;
}
