#include "pointer_map.h"

#include <stdint.h>
#include <stdlib.h>

/* The slot of `key`, or the empty one where it would go. */
static struct pointer_pair *slot(const struct pointer_map *map,
                                 const void *key) {
    uint64_t hash = (uint64_t)(uintptr_t)key * 0x9E3779B97F4A7C15u;
    size_t mask = map->capacity - 1;
    size_t at = (size_t)(hash >> 32) & mask;
    while (map->slots[at].key && map->slots[at].key != key)
        at = (at + 1) & mask;
    return &map->slots[at];
}

static int grow(struct pointer_map *map) {
    struct pointer_map larger = {.capacity =
                                     map->capacity ? map->capacity * 2 : 64};
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return 0;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].key)
            *slot(&larger, map->slots[i].key) = map->slots[i];
    larger.used = map->used;
    free(map->slots);
    *map = larger;
    return 1;
}

void *simrt_map_get(const struct pointer_map *map, const void *key) {
    return map->capacity && key ? slot(map, key)->value : NULL;
}

int simrt_map_put(struct pointer_map *map, const void *key, void *value) {
    if (map->used * 2 >= map->capacity && !grow(map))
        return 0;
    struct pointer_pair *pair = slot(map, key);
    if (!pair->key) {
        pair->key = key;
        map->used++;
    }
    pair->value = value;
    return 1;
}
