/*
 * Buffers that live and die together, packed into few allocations: here the
 * gradients of a small network, as Paddle fuses them.
 *
 *   gcc groups.c -o groups $(pkg-config --cflags --libs vramalloc) -lcudart
 */
#include "cuda.h"

enum { MIB = 1 << 20, COUNT = 6 };

static const vramalloc_member gradients[COUNT] = {
    {4 * MIB, "encoder.weight", 0}, {4096, "encoder.bias", 0},
    {MIB / 2, "norm.scale", 0},     {MIB / 2, "norm.bias", 0},
    {4 * MIB, "head.weight", 0},    {1000, "head.bias", 0},
};

static size_t packed(const char *mebibytes, const char *most_members) {
    void *addresses[COUNT];
    vramalloc_group group;
    size_t allocations;

    CHECK(vramalloc_ctl("option.fuse_parameter_memory_size", mebibytes, NULL, 0,
                        NULL));
    CHECK(vramalloc_ctl("option.fuse_parameter_groups_size", most_members, NULL,
                        0, NULL));
    CHECK(vramalloc_group_malloc(gradients, COUNT, 0, addresses, &group));
    CHECK(vramalloc_group_allocations(group, &allocations));
    /* Each member is a buffer like any other. */
    for (int i = 0; i < COUNT; i++)
        CHECK(cudaMemsetAsync(addresses[i], 0, gradients[i].size, NULL));
    CHECK(cudaStreamSynchronize(NULL));
    CHECK(vramalloc_group_free(group));
    return allocations;
}

int main(void) {
    printf("a negative size, one to a layer: %zu\n", packed("-1", "1"));
    printf("0, one for all: %zu\n", packed("0", "1"));
    printf("layers until there is 1 MiB: %zu\n", packed("1", "1"));
    printf("layers until there are 5 MiB: %zu\n", packed("5", "1"));
    printf("or more than three members: %zu\n", packed("100", "3"));
    return 0;
}
