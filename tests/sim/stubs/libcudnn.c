/*
 * What the stand-in for cuDNN must answer. It can say its version and no more:
 * a program that would have it convolve gets "not supported" where it asks for
 * a plan, and takes another way. Its other functions succeed and do nothing.
 * Cost: none.
 */
#include <stddef.h>

enum { NOT_SUPPORTED = 3000 };

static int the_handle;

int cudnnCreate(void **handle) {
    *handle = &the_handle;
    return 0;
}

size_t cudnnGetVersion(void) { return 90100; }

size_t cudnnGetCudartVersion(void) { return 12040; }

const char *cudnnGetErrorString(int status) {
    return status ? "the stand-in for cuDNN cannot do this" : "no error";
}

void cudnnGetLastErrorString(char *text, size_t room) {
    if (room)
        *text = 0;
}

int cudnnBackendCreateDescriptor(int type, void **descriptor) {
    (void)type;
    *descriptor = NULL;
    return NOT_SUPPORTED;
}
