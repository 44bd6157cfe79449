/*
 * Watches the amount of free memory as programs do that plan by it: it is
 * never above the total, never rises while more is allocated, returns with
 * what is freed, and does not jump when the allocator gives memory back in a
 * shortage. Either place for an answer may be NULL.
 *
 *   info        all of that
 *   info first  takes what the first answer names, in one piece
 */
#include "gpu.h"

enum { BLOCKS = 40 };

static const size_t mib = 1 << 20;

static size_t available(void) {
    size_t now, total;
    GPU(gpu_mem_info(&now, &total));
    if (now > total)
        printf("free %zu of %zu\n", now, total);
    return now;
}

static int near(size_t a, size_t b) {
    return a <= b + 64 * mib && b <= a + 64 * mib;
}

static void check_null(void) {
    size_t total = 1, again = 2, now = 1, once = 2;
    GPU(gpu_mem_info(&now, &total));
    printf("only free: %d", gpu_mem_info(&once, NULL));
    printf(", the same %d\n", near(now, once));
    printf("only total: %d", gpu_mem_info(NULL, &again));
    printf(", the same %d\n", total == again);
    printf("neither: %d, last error %d\n", gpu_mem_info(NULL, NULL),
           gpu_last_error());
}

static int first_answer(void) {
    void *block;
    int code = gpu_malloc(&block, available());
    printf("all that is free can be had: %d\n", code);
    return code;
}

int main(int argc, char **argv) {
    void *blocks[BLOCKS], *most, *too_much = NULL;
    int rises = 0, falls = 0;
    GPU(gpu_set_device(0));
    if (argc == 2 && !strcmp(argv[1], "first"))
        return first_answer();
    check_null();
    size_t first = available(), last = first;
    for (int i = 0; i < BLOCKS; i++) {
        GPU(gpu_malloc(&blocks[i], (size_t)(i % 7 + 1) * 5 * mib));
        size_t now = available();
        rises += now > last;
        last = now;
    }
    printf("rose %d times while allocating\n", rises);
    printf("fell by what was taken: %d\n", near(first - last, 770 * mib));
    for (int i = 0; i < BLOCKS; i += 2) {
        GPU(gpu_free(blocks[i]));
        size_t now = available();
        falls += now + 64 * mib < last;
        last = now;
    }
    GPU(gpu_sync());
    printf("fell %d times while freeing\n", falls);
    size_t half = available();
    /* A shortage, in which idle memory goes back to the device. */
    printf("too much: %d\n", gpu_malloc(&too_much, (size_t)1 << 44));
    gpu_last_error();
    printf("the shortage changed nothing: %d\n", near(half, available()));
    for (int i = 1; i < BLOCKS; i += 2)
        GPU(gpu_free(blocks[i]));
    GPU(gpu_sync());
    printf("all came back: %d\n", near(first, available()));
    GPU(gpu_malloc(&most, available() / 4 * 3));
    printf("three quarters of it can be had\n");
    printf("and are gone then: %d\n", near(available(), first / 4));
    GPU(gpu_free(most));
    return 0;
}
