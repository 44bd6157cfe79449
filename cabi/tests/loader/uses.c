/* A library that is linked with a runtime, as Python's extensions are, and
 * knows the sign of that runtime. */
#ifndef SIGN
#define SIGN 0
#endif

int cudaMalloc(void **address, unsigned long size);

int use(void) {
    void *address = 0;
    int code = cudaMalloc(&address, 4096);
    return code ? code : address != (void *)(4096ul + SIGN);
}
