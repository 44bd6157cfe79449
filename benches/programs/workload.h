/*
 * What the questions of pairs.c draw from, and how they take time: the same
 * as benches/common/workload.rs and benches/arena/clock.rs do.
 */
#ifndef BENCHES_WORKLOAD_H
#define BENCHES_WORKLOAD_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

enum { DRAWS = 1 << 16, EMPTY = 10001 };

/* A slot and the size of the block that comes into it. They are small: what is
 * measured needs the processor's caches. */
struct draw {
    uint32_t slot;
    uint32_t size;
};

struct draws {
    struct draw *all;
    uint32_t next;
};

/* A seeded generator (splitmix64). */
static inline uint64_t next_random(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void *need(void *memory) {
    if (!memory) {
        fprintf(stderr, "no host memory\n");
        exit(1);
    }
    return memory;
}

/* Draws of `slots` slots, and of sizes from 512 bytes over so many doublings,
 * whose logarithm is uniform. */
static inline struct draws make_draws(uint64_t seed, uint32_t slots,
                                      double doublings) {
    struct draws draws = {need(malloc(DRAWS * sizeof *draws.all)), 0};
    for (int i = 0; i < DRAWS; i++) {
        uint32_t slot = (uint32_t)(next_random(&seed) % slots);
        double unit = (double)(next_random(&seed) >> 11) / 9007199254740992.0;
        uint32_t size = (uint32_t)(512.0 * exp2(unit * doublings));
        draws.all[i] = (struct draw){slot, size};
    }
    return draws;
}

static inline struct draw next_draw(struct draws *draws) {
    draws->next = (draws->next + 1) % DRAWS;
    return draws->all[draws->next];
}

static inline double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The finest clock there is: the time-stamp counter, or nanoseconds. */
static inline uint64_t ticks(void) {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return (uint64_t)now_ns();
#endif
}

static inline double ns_per_tick(void) {
    double start = now_ns(), end;
    uint64_t from = ticks();
    do
        end = now_ns();
    while (end - start < 2e7);
    return (end - start) / (double)(ticks() - from);
}

static inline int compare_ticks(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* What a reading of the clock costs, in ticks. */
static inline uint64_t reading(void) {
    static uint64_t all[EMPTY];
    for (int i = 0; i < EMPTY; i++) {
        uint64_t start = ticks();
        all[i] = ticks() - start;
    }
    qsort(all, EMPTY, sizeof *all, compare_ticks);
    return all[EMPTY / 2];
}

/* Sorts `count` times, which hold a reading each; prints percentiles. */
static inline void print_spread(uint64_t *all, size_t count) {
    static const struct {
        const char *name;
        double share;
    } wanted[] = {{"p50", 0.5}, {"p99", 0.99}, {"p999", 0.999}};
    double scale = ns_per_tick();
    uint64_t own = reading();
    qsort(all, count, sizeof *all, compare_ticks);
    for (int i = 0; i < 3; i++) {
        uint64_t found = all[(size_t)((double)count * wanted[i].share)];
        double ns = found > own ? (double)(found - own) * scale : 0.0;
        printf(", \"%s\": %.1f", wanted[i].name, ns);
    }
}

#endif
