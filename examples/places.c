/*
 * Memory at each place: on a device, page-locked and pageable on the host.
 *
 *   gcc places.c -o places $(pkg-config --cflags --libs vramalloc) -lcudart
 */
#include <stdint.h>
#include <string.h>

#include "cuda.h"

enum { SIZE = 1 << 20 };

int main(void) {
    void *device, *pinned, *pageable;

    if (vramalloc_version_number() / 100 != VRAMALLOC_VERSION / 100) {
        fprintf(stderr, "library %s is not of this header's version\n",
                vramalloc_version());
        return 1;
    }

    /* The first call of the program: it initialises CUDA on device 0. */
    CHECK(vramalloc_malloc(SIZE, 0, &device));
    CHECK(vramalloc_malloc(SIZE, VRAMALLOC_PINNED, &pinned));
    CHECK(vramalloc_malloc(SIZE, VRAMALLOC_PAGEABLE, &pageable));
    printf("device memory begins at a multiple of 512: %s\n",
           (uintptr_t)device % 512 == 0 ? "yes" : "no");

    /* To CUDA it is memory like any other. */
    memset(pinned, 7, SIZE);
    memset(pageable, 0, SIZE);
    CHECK(cudaMemcpy(device, pinned, SIZE, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(pageable, device, SIZE, cudaMemcpyDeviceToHost));
    printf("a round trip kept every byte: %s\n",
           memcmp(pinned, pageable, SIZE) == 0 ? "yes" : "no");

    /* One function frees all of it: the address says where it lies. */
    CHECK(vramalloc_free(pageable));
    CHECK(vramalloc_free(pinned));

    /* Mistakes are answered and change nothing. */
    printf("an address inside a block: %s\n",
           vramalloc_error_name(vramalloc_free((char *)device + 512)));
    CHECK(vramalloc_free(device));
    printf("a second free: %s\n", vramalloc_error_name(vramalloc_free(device)));

    /* What is cached can be given back. */
    uint64_t released;
    CHECK(vramalloc_empty_cache(0, &released));
    printf("given back to the device: %s\n", released > 0 ? "some" : "none");
    CHECK(vramalloc_empty_cache(VRAMALLOC_PAGEABLE, &released));
    printf("given back to the host: %s\n", released > 0 ? "some" : "none");

    /* What CUDA answers comes back as it is, and the pointer is null. */
    int code = vramalloc_malloc((size_t)1 << 50, 0, &device);
    printf("a pebibyte: %d, %s, %s\n", code, vramalloc_error_name(code),
           device == NULL ? "null" : "not null");
    return 0;
}
