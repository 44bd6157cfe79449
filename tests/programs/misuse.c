/*
 * Frees what is not to be freed. Each line: what was answered, and the last
 * error after it. Memory that is live must come to no harm by it.
 */
#include "gpu.h"

enum { SIZE = 8192, STAMP = 0x3c };

static int holds(const void *block) {
    unsigned char host[SIZE];
    GPU(gpu_copy_out(host, block, SIZE));
    for (int i = 0; i < SIZE; i++)
        if (host[i] != STAMP)
            return 0;
    return 1;
}

static void wrong_free(const char *what, void *pointer) {
    int code = gpu_free(pointer);
    printf("%s: %d, last error %d\n", what, code, gpu_last_error());
}

int main(void) {
    void *kept, *freed, *again, *large;
    int local = 0;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&kept, SIZE));
    GPU(gpu_malloc(&freed, SIZE));
    GPU(gpu_malloc(&large, 64 << 20));
    GPU(gpu_set(kept, STAMP, SIZE));

    wrong_free("host memory", &local);
    wrong_free("an address nobody has", (void *)(uintptr_t)0x1000);
    wrong_free("an inner address", (char *)kept + 512);
    wrong_free("an odd inner address", (char *)kept + 7);
    wrong_free("an inner address of a large block", (char *)large + (4 << 20));
    GPU(gpu_free(freed));
    wrong_free("a second free", freed);
    GPU(gpu_free(large));
    wrong_free("a second free of a large block", large);

    GPU(gpu_malloc(&again, SIZE));
    GPU(gpu_set(again, 0, SIZE));
    printf("the kept block holds: %d, and is apart: %d\n", holds(kept),
           again != kept);
    GPU(gpu_free(again));
    GPU(gpu_free(kept));
    return 0;
}
