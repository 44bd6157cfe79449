/*
 * What the stand-in for NCCL must answer. There are no peers: a communicator
 * cannot be made. Cost: none.
 */
#include <stddef.h>

enum { INVALID_USAGE = 5 };

int ncclGetVersion(int *version) {
    *version = 22105;
    return 0;
}

const char *ncclGetErrorString(int status) {
    return status ? "the stand-in for NCCL has no peers" : "no error";
}

const char *ncclGetLastError(void *communicator) {
    (void)communicator;
    return "";
}

int ncclCommInitAll(void **communicators, int count, const int *devices) {
    (void)communicators, (void)count, (void)devices;
    return INVALID_USAGE;
}
