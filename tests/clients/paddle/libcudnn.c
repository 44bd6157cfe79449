/*
 * A stand-in for cuDNN under Paddle, which wants to know its version and to
 * have a handle; tensors need no more of it. Cost: none.
 */
#include <stddef.h>

static int the_handle;

size_t cudnnGetVersion(void) { return 7605; }

int cudnnCreate(void **handle) {
    *handle = &the_handle;
    return 0;
}

int cudnnSetStream(void *handle, void *stream) {
    (void)handle, (void)stream;
    return 0;
}

int cudnnDestroy(void *handle) {
    (void)handle;
    return 0;
}
