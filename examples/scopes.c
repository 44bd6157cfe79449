/*
 * Scopes: what a thread gets between two calls is freed together, by the
 * thread itself or in the background.
 *
 *   gcc scopes.c -o scopes $(pkg-config --cflags --libs vramalloc) -lcudart
 */
#include "cuda.h"

static const char *get(const char *name) {
    static char answer[64];
    CHECK(vramalloc_ctl(name, NULL, answer, sizeof answer, NULL));
    return answer;
}

/* Work that takes what it needs and does not count what it took. */
static void *step(void) {
    void *scratch, *result;
    for (int i = 0; i < 10; i++)
        CHECK(vramalloc_malloc(100000, 0, &scratch));
    CHECK(vramalloc_malloc(1 << 20, 0, &result));
    return result;
}

int main(void) {
    vramalloc_scope scope, inner;
    void *kept;

    CHECK(vramalloc_malloc(1 << 20, 0, &kept));
    CHECK(vramalloc_scope_begin(&scope));
    step();
    CHECK(vramalloc_scope_begin(&inner));
    void *early = step();
    /* What is freed by itself is not freed once more. */
    CHECK(vramalloc_free(early));
    CHECK(vramalloc_scope_end(inner));
    printf("the outer one must wait: %s\n",
           vramalloc_error_name(vramalloc_scope_end(inner)));
    CHECK(vramalloc_scope_end(scope));
    printf("live after the scopes: %s\n", get("device.0.live"));

    /* In the background. A trim waits for it. */
    CHECK(vramalloc_ctl("option.eager_delete_scope", "False", NULL, 0, NULL));
    CHECK(vramalloc_scope_begin(&scope));
    step();
    CHECK(vramalloc_scope_end(scope));
    get("trim");
    printf("live after a trim: %s\n", get("device.0.live"));
    CHECK(vramalloc_free(kept));
    printf("live at the end: %s\n", get("device.0.live"));
    return 0;
}
