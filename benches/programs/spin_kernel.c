/* A kernel that takes time, for a program that has a gpu.h of its own. */
#include "gpu.h"

int spin_kernel(gpu_stream stream, uint64_t ns) { return gpu_spin(stream, ns); }
