/*
 * The first CUDA call comes from a constructor, before main and perhaps
 * before the constructors of preloaded libraries; the last from a destructor.
 */
#include "gpu.h"

static void *early;

__attribute__((constructor)) static void allocate_early(void) {
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&early, 1 << 20));
}

__attribute__((destructor)) static void free_late(void) {
    void *late = early;
    early = NULL;
    if (late)
        gpu_free(late);
}

int main(void) {
    void *second;
    unsigned char byte = 0;
    GPU(gpu_set(early, 0x5a, 1 << 20));
    GPU(gpu_malloc(&second, 1 << 20));
    GPU(gpu_copy_out(&byte, (char *)early + (1 << 20) - 1, 1));
    printf("from constructor: %d, distinct: %d\n", byte, early != second);
    GPU(gpu_free(second));
    return 0;
}
