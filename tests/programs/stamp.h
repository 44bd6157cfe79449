/*
 * Blocks that are stamped all over, and what a kernel's late write does to
 * them: `late_value` in the first four bytes of what it still holds.
 */
#ifndef PROGRAMS_STAMP_H
#define PROGRAMS_STAMP_H

#include "gpu.h"

enum { STAMP = 0x5a };

static const uint32_t late_value = 0xdeadbeef;

/* How many of so many blocks hold anything but the stamp. */
static int count_damaged(void *const blocks[], int count, size_t size) {
    unsigned char *host = malloc(size);
    int damaged = 0;
    if (!host)
        exit(1);
    for (int i = 0; i < count; i++) {
        GPU(gpu_copy_out(host, blocks[i], size));
        damaged += !gpu_is_all(host, STAMP, size);
    }
    free(host);
    return damaged;
}

#endif
