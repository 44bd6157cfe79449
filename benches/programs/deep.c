/*
 * Pairs of an allocation and a free below so many frames: what a call stack
 * costs. A library that deep.py loads, so that frames of Python stand above.
 */
#include "gpu.h"
#include "workload.h"

double pair_below(int frames, int rounds, long pairs);

static volatile int sink;

static double best_pair(int rounds, long pairs) {
    double best = INFINITY;
    for (int round = 0; round < rounds; round++) {
        double start = now_ns();
        for (long n = 0; n < pairs; n++) {
            void *block;
            GPU(gpu_malloc(&block, 4096));
            GPU(gpu_free(block));
        }
        best = fmin(best, (now_ns() - start) / (double)pairs);
    }
    return best;
}

__attribute__((noinline)) double pair_below(int frames, int rounds, long pairs) {
    double ns = frames > 1 ? pair_below(frames - 1, rounds, pairs)
                           : best_pair(rounds, pairs);
    /* Not the last call, which would need no frame. */
    sink++;
    return ns;
}
