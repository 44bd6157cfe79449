/*
 * Frees what is not to be freed. Each line: what was answered, and the last
 * error after it. Memory that is live must come to no harm by it.
 *
 *   misuse [gone|refused]
 *
 * `gone`: a free in the order of a stream that is gone is one of them, at which a
 * real driver may crash. `refused`: the device refuses the first free of each sort.
 */
#include <pthread.h>

#include "gpu.h"

#include "find.h"

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

static int (*free_in_order)(unsigned long long, void *);
static gpu_stream named;

/* Frees in the order of a stream, on a thread without a context. */
static void *without_context(void *block) {
    int code = free_in_order((uintptr_t)block, named);
    printf("in a stream's order, without a context: %d\n", code);
    return NULL;
}

static int refused(void) {
    void *blocks[2];
    gpu_stream stream;
    GPU(gpu_stream_create(&stream));
    for (int i = 0; i < 2; i++) {
        GPU(gpu_malloc(&blocks[i], SIZE));
        GPU(gpu_set(blocks[i], STAMP, SIZE));
    }
    wrong_free("a free that is refused", blocks[0]);
    printf("one in order: %d", gpu_free_async(blocks[1], stream));
    printf(", last error %d\n", gpu_last_error());
    printf("they hold: %d %d\n", holds(blocks[0]), holds(blocks[1]));
    GPU(gpu_free_async(blocks[0], stream));
    GPU(gpu_free(blocks[1]));
    wrong_free("a second free", blocks[1]);
    return 0;
}

int main(int count, char **arguments) {
    void *kept, *freed, *again, *large;
    gpu_stream gone;
    int local = 0;
    GPU(gpu_set_device(0));
    if (count > 1 && !strcmp(arguments[1], "refused"))
        return refused();
    GPU(gpu_malloc(&kept, SIZE));
    GPU(gpu_malloc(&freed, SIZE));
    GPU(gpu_malloc(&large, 64 << 20));
    GPU(gpu_set(kept, STAMP, SIZE));

    *(void **)&free_in_order = find_if_there("cuMemFreeAsync");
    if (free_in_order) {
        pthread_t other;
        void *block;
        printf("nothing, in order: %d\n", free_in_order(0, NULL));
        GPU(gpu_malloc(&block, SIZE));
        GPU(gpu_stream_create(&named));
        pthread_create(&other, NULL, without_context, block);
        pthread_join(other, NULL);
        wrong_free("a second free, after that", block);
        GPU(gpu_stream_destroy(named));
    }
    wrong_free("host memory", &local);
    wrong_free("an address nobody has", (void *)(uintptr_t)0x1000);
    wrong_free("an inner address", (char *)kept + 512);
    wrong_free("an odd inner address", (char *)kept + 7);
    wrong_free("an inner address of a large block", (char *)large + (4 << 20));
    if (count > 1) {
        GPU(gpu_stream_create(&gone));
        GPU(gpu_stream_destroy(gone));
        printf("in the order of a stream that is gone: %d", gpu_free_async(kept, gone));
        printf(", last error %d\n", gpu_last_error());
    }
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
