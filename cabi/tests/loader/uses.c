/* A library that is linked to a runtime, as the extensions of Python are; it
 * knows the sign of its own. */
#ifndef SIGN
#define SIGN 0
#endif

int cudaMalloc(void **address, unsigned long size);

int use(void) {
    void *address = 0;
    int code = cudaMalloc(&address, 4096);
    return code ? code : address != (void *)(4096ul + SIGN);
}
