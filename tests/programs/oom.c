/*
 * Takes all there is, looks at the error, gives back and takes again.
 *
 * Lines that begin with "info" hold amounts, which a cap or a pool changes;
 * all others are the same whatever is below.
 */
#include "gpu.h"

enum { MAX_BLOCKS = 1 << 16 };

static void *blocks[MAX_BLOCKS];
static size_t sizes[MAX_BLOCKS];

static size_t mib(size_t bytes) { return bytes >> 20; }

/* Fills the device with ever smaller blocks; returns how many. */
static int take_all(size_t *got, int *code) {
    int count = 0;
    *got = 0;
    for (size_t size = (size_t)256 << 20; size >= (size_t)1 << 20; size /= 2) {
        while (count < MAX_BLOCKS) {
            *code = gpu_malloc(&blocks[count], size);
            if (*code)
                break;
            sizes[count++] = size;
            *got += size;
        }
        if (*code != GPU_OUT_OF_MEMORY)
            break;
        gpu_last_error();
    }
    return count;
}

/* A block's first and last word are its own. */
static int stamps_hold(int count) {
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        char *end = (char *)blocks[i] + sizes[i] - sizeof i;
        GPU(gpu_copy_in(blocks[i], &i, sizeof i));
        GPU(gpu_copy_in(end, &i, sizeof i));
    }
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        uint32_t first = ~i, last = ~i;
        char *end = (char *)blocks[i] + sizes[i] - sizeof i;
        GPU(gpu_copy_out(&first, blocks[i], sizeof i));
        GPU(gpu_copy_out(&last, end, sizeof i));
        if (first != i || last != i)
            return 0;
    }
    return 1;
}

int main(void) {
    size_t available, total, got, left;
    int code = 0;
    void *block = NULL;
    GPU(gpu_set_device(0));
    GPU(gpu_mem_info(&available, &total));
    int count = take_all(&got, &code);
    GPU(gpu_mem_info(&left, NULL));
    printf("info total=%zu free=%zu got=%zu left=%zu blocks=%d\n", mib(total),
           mib(available), mib(got), mib(left), count);
    printf("code %d\n", code);
    printf("got no more than was free: %d\n", got <= available);
    printf("stamps hold: %d\n", stamps_hold(count));

    code = gpu_malloc(&block, (size_t)256 << 20);
    int first = gpu_last_error();
    int second = gpu_last_error();
    printf("once more: %d, last error %d then %d\n", code, first, second);
    code = gpu_malloc(&block, (size_t)1 << 50);
    gpu_last_error();
    printf("a pebibyte: %d\n", code);

    GPU(gpu_free(blocks[0]));
    GPU(gpu_malloc(&blocks[0], sizes[0]));
    printf("the place of a freed block can be had again\n");
    for (int i = 0; i < count; i++)
        GPU(gpu_free(blocks[i]));
    GPU(gpu_malloc(&block, got / 2));
    printf("half of all can be had in one piece\n");
    GPU(gpu_free(block));
    GPU(gpu_mem_info(&left, NULL));
    printf("info left=%zu\n", mib(left));
    return 0;
}
