/* Is linked to CUDA (in the runtime kinds) and never touches it. */
#include "gpu.h"

/* Keeps the runtime linked without calling it. */
int (*volatile nothing_kept)(void **, size_t) = gpu_malloc;

int main(void) {
    puts("nothing");
    return 0;
}
