/*
 * Blocks that are stamped, and what a kernel's late write does to them:
 * `late_value` in all of what it still holds.
 *
 * Of two blocks of one size that share bytes, each shares its first byte or its
 * last one. So only the edges are stamped and looked at.
 */
#ifndef PROGRAMS_STAMP_H
#define PROGRAMS_STAMP_H

#include "gpu.h"

enum { STAMP = 0x5a, EDGE = 4096 };

static const uint32_t late_value = 0xdeadbeef;

static inline size_t edge_of(size_t size) { return size < EDGE ? size : EDGE; }

static inline void stamp(void *block, int value, size_t size) {
    unsigned char bytes[EDGE];
    size_t edge = edge_of(size);
    memset(bytes, value, edge);
    GPU(gpu_copy_in(block, bytes, edge));
    GPU(gpu_copy_in((char *)block + size - edge, bytes, edge));
}

/* How many of so many blocks hold anything but the stamp at an edge. */
static inline int count_damaged(void *const blocks[], int count, size_t size) {
    unsigned char first[EDGE], last[EDGE];
    size_t edge = edge_of(size);
    int damaged = 0;
    for (int i = 0; i < count; i++) {
        GPU(gpu_copy_out(first, blocks[i], edge));
        GPU(gpu_copy_out(last, (char *)blocks[i] + size - edge, edge));
        damaged += !gpu_is_all(first, STAMP, edge) || !gpu_is_all(last, STAMP, edge);
    }
    return damaged;
}

#endif
