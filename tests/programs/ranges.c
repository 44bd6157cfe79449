/*
 * Asks the driver what it knows of a block, as libraries do that share or
 * register memory: the allocation around it, its kind, device and context.
 * The answers must fit the block, agree with each other and stay as they are
 * while other memory comes and goes.
 *
 * A line that begins with "info" tells whether blocks begin allocations. With the
 * argument hand_out it asks whether other hardware can be given a block.
 */
#include "gpu.h"

#include "find.h"

#include <unistd.h>

enum { CONTEXT = 1, KIND = 2, DEVICE = 3, ORDINAL = 9, START = 11, SIZE = 12, BLOCKS = 5 };

typedef unsigned long long address;

static int (*range)(address *, size_t *, address);
static int (*attribute)(void *, int, address);
static int (*attributes)(unsigned, int *, void **, address);
static int (*current)(void **);

struct answers {
    address base;
    size_t size;
    void *context;
    unsigned kind;
    int ordinal;
};

static struct answers ask(address at) {
    struct answers answers = {0};
    GPU(range(&answers.base, &answers.size, at));
    GPU(attribute(&answers.context, CONTEXT, at));
    GPU(attribute(&answers.kind, KIND, at));
    GPU(attribute(&answers.ordinal, ORDINAL, at));
    return answers;
}

static int same(struct answers a, struct answers b) {
    return a.base == b.base && a.size == b.size && a.context == b.context &&
           a.kind == b.kind && a.ordinal == b.ordinal;
}

static void churn(void) {
    void *blocks[64] = {0};
    for (int round = 0; round < 512; round++) {
        int slot = round * 7 % 64;
        if (blocks[slot])
            GPU(gpu_free(blocks[slot]));
        GPU(gpu_malloc(&blocks[slot], (size_t)(round % 31 + 1) << 18));
    }
    for (int i = 0; i < 64; i++)
        if (blocks[i])
            GPU(gpu_free(blocks[i]));
}

/* Whether other hardware can be given a block, beside one of an odd size. */
static void hand_out(void) {
    int (*hand)(int *, address, size_t, int, address) =
        find("cuMemGetHandleForAddressRange");
    void *whole, *odd, *block;
    int file = -1;
    GPU(gpu_malloc(&whole, 64 << 20));
    GPU(gpu_free(whole));
    GPU(gpu_malloc(&odd, (5 << 20) + 512));
    GPU(gpu_malloc(&block, 8 << 20));
    printf("handle: %d\n", hand(&file, (uintptr_t)block, 8 << 20, 1, 0));
    if (file >= 0)
        close(file);
}

int main(int argc, char **argv) {
    static const size_t sizes[BLOCKS] = {512, 100000, 3 << 20, 20 << 20,
                                         200 << 20};
    struct answers before[BLOCKS];
    void *blocks[BLOCKS], *context = NULL;
    int inside = 0, inner = 0, fitting = 0, kept = 0, holding = 0, first = 0;
    GPU(gpu_set_device(0));
    if (argc > 1 && !strcmp(argv[1], "hand_out")) {
        hand_out();
        return 0;
    }
    *(void **)&range = find("cuMemGetAddressRange_v2");
    *(void **)&attribute = find("cuPointerGetAttribute");
    *(void **)&attributes = find("cuPointerGetAttributes");
    *(void **)&current = find("cuCtxGetCurrent");
    for (uint32_t i = 0; i < BLOCKS; i++) {
        GPU(gpu_malloc(&blocks[i], sizes[i]));
        GPU(gpu_copy_in(blocks[i], &i, sizeof i));
    }
    GPU(current(&context));
    for (int i = 0; i < BLOCKS; i++) {
        address at = (uintptr_t)blocks[i];
        struct answers a = before[i] = ask(at);
        inside += a.base <= at && at + sizes[i] <= a.base + a.size;
        inner += same(a, ask(at + sizes[i] / 2));
        fitting += a.context == context && a.kind == 2 && a.ordinal == 0;
        first += a.base == at;
    }
    printf("inside their allocation: %d, the same within: %d, fitting: %d\n",
           inside, inner, fitting);
    printf("info first=%d\n", first);
    churn();
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t word = ~i;
        kept += same(before[i], ask((uintptr_t)blocks[i]));
        GPU(gpu_copy_out(&word, blocks[i], sizeof word));
        holding += word == i;
    }
    printf("as before: %d, holding: %d\n", kept, holding);
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free(blocks[i]));
    /* A chunk may lie there still. */
    for (int i = 0; i < BLOCKS; i++) {
        int asked[2] = {START, SIZE}, inner = i % 2 ? 256 : 0;
        size_t start = 1, size = 1;
        void *to[2] = {&start, &size};
        address at = (uintptr_t)blocks[i] + (size_t)inner;
        printf("freed: %d %d %d", range(&before[i].base, &before[i].size, at),
               range(NULL, NULL, at), attribute(&before[i].base, START, at));
        printf(" %d", attributes(2, asked, to, at));
        printf(", from %zu %zu\n", start, size);
    }
    return 0;
}
