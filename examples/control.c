/*
 * Options and numbers by name, while the program runs.
 *
 *   gcc control.c -o control $(pkg-config --cflags --libs vramalloc) -lcudart
 */
#include "cuda.h"

static const char *get(const char *name) {
    static char answer[256];
    CHECK(vramalloc_ctl(name, NULL, answer, sizeof answer, NULL));
    return answer;
}

static const char *set(const char *name, const char *value) {
    int code = vramalloc_ctl(name, value, NULL, 0, NULL);
    return vramalloc_error_name(code);
}

int main(void) {
    void *block, *more;

    /* Before memory is asked for, every option can be set. */
    printf("strategy: %s\n", get("option.strategy"));
    printf("set it: %s\n", set("option.strategy", "naive_best_fit"));
    printf("the first chunk: %s\n", set("option.initial_gpu_memory_in_mb", "64"));
    printf("later chunks: %s\n", set("option.reallocate_gpu_memory_in_mb", "64"));

    CHECK(vramalloc_malloc(1 << 20, 0, &block));
    printf("live: %s\n", get("device.0.live"));
    printf("reserved: %s\n", get("device.0.reserved"));

    /* Afterwards some, the limit among them. */
    printf("set the strategy now: %s\n", set("option.strategy", "auto_growth"));
    printf("set the limit: %s\n", set("option.limit", "64MiB"));
    printf("the limit: %s\n", get("device.0.limit"));
    printf("beyond it: %s\n",
           vramalloc_error_name(vramalloc_malloc(100 << 20, 0, &more)));

    /* Mistakes have codes of their own. */
    printf("no size: %s\n", set("option.limit", "plenty"));
    printf("no option: %s\n", set("option.colour", "red"));
    printf("no value to set: %s\n", set("device.0.live", "0"));

    CHECK(vramalloc_free(block));
    CHECK(vramalloc_ctl("flush", NULL, NULL, 0, NULL));
    printf("live: %s\n", get("device.0.live"));
    printf("given back: %s\n", get("trim"));
    printf("reserved: %s\n", get("device.0.reserved"));
    return 0;
}
