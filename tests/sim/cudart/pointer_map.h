/*
 * A map from pointers to pointers, grown as needed, never shrunk. Not locked:
 * its owner locks. NULL is no key. Cost: one probe, two at most on average.
 */
#ifndef SIM_CUDART_POINTER_MAP_H
#define SIM_CUDART_POINTER_MAP_H

#include <stddef.h>

struct pointer_map {
    struct pointer_pair {
        const void *key;
        void *value;
    } *slots;
    size_t capacity, used;
};

/* The value of `key`, NULL where there is none. */
void *simrt_map_get(const struct pointer_map *map, const void *key);

/* Sets the value of `key`; 0 where there is no memory for it. */
int simrt_map_put(struct pointer_map *map, const void *key, void *value);

#endif
