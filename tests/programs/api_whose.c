/*
 * Asks whose blocks are: where they begin, how large they are, and which calls
 * asked for them.
 *
 * usage: api_whose stacks | none
 */
#include "api.h"
#include "gpu.h"

enum { MOST = 128 };

static void *asked_from;

/* Asks for memory, and notes where this was called. */
__attribute__((noinline)) static void *ask(size_t size) {
    void *block = NULL;
    asked_from = (char *)__builtin_return_address(0) - 1;
    GPU(gpu_malloc(&block, size));
    /* No jump to it, in place of a call. */
    __asm__ volatile("" ::: "memory");
    return block;
}

int main(int count, char **words) {
    int stacks = count > 1 && !strcmp(words[1], "stacks");
    api_load();
    GPU(gpu_set_device(0));
    char *one = ask(3 << 20), *two = ask(5000);
    void *from = asked_from;

    vramalloc_block block = {.struct_size = sizeof block};
    void *calls[MOST] = {0};
    char python[4] = "abc";
    EXPECT(VRAMALLOC_SUCCESS,
           api.whose(two + 4999, &block, calls, MOST, python, sizeof python));
    if (block.address != two || block.requested != 5000 || block.size != 5120 ||
        block.place != 0 || block.struct_size != sizeof block)
        return 3;
    /* There is no Python here. */
    if (block.python != 1 || *python)
        return 4;
    size_t at = 0;
    while (at < block.calls && calls[at] != from)
        at++;
    if (stacks ? at == block.calls || block.stack == VRAMALLOC_NO_STACK
               : block.calls != 0 || block.stack != VRAMALLOC_NO_STACK)
        return 5;
    if (stacks) {
        size_t needed = block.calls;
        EXPECT(VRAMALLOC_TOO_SMALL, api.whose(two, &block, calls, needed - 1, NULL, 0));
        EXPECT(VRAMALLOC_SUCCESS, api.whose(two, &block, calls, needed, NULL, 0));
        EXPECT(VRAMALLOC_TOO_SMALL, api.whose(two, &block, NULL, 0, python, 0));
    }
    EXPECT(VRAMALLOC_SUCCESS, api.whose(one, &block, NULL, 0, NULL, 0));
    if (block.address != one || block.size != 3 << 20)
        return 6;
    int local;
    EXPECT(VRAMALLOC_NOT_OURS, api.whose(&local, &block, NULL, 0, NULL, 0));
    EXPECT(VRAMALLOC_NOT_OURS, api.whose(NULL, &block, NULL, 0, NULL, 0));
    EXPECT(VRAMALLOC_INVALID_ARGUMENT, api.whose(one, NULL, NULL, 0, NULL, 0));
    block.struct_size = sizeof block - 1;
    EXPECT(VRAMALLOC_INVALID_ARGUMENT, api.whose(one, &block, NULL, 0, NULL, 0));
    block.struct_size = sizeof block;
    GPU(gpu_free(one));
    EXPECT(VRAMALLOC_NOT_OURS, api.whose(one, &block, NULL, 0, NULL, 0));
    GPU(gpu_free(two));
    return 0;
}
