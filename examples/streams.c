/*
 * Memory of streams: the stream that used a block gets it back at once; a block
 * that another stream used too waits until that one is done with it.
 *
 *   gcc streams.c -o streams $(pkg-config --cflags --libs vramalloc) -lcudart
 */
#include "cuda.h"

enum { SIZE = 64 << 20 };

static void *get(cudaStream_t stream) {
    void *block;
    CHECK(vramalloc_malloc_on_stream(SIZE, 0, stream, &block));
    return block;
}

int main(void) {
    cudaStream_t computing, copying;
    unsigned char byte = 0;

    CHECK(cudaStreamCreate(&computing));
    CHECK(cudaStreamCreate(&copying));

    /* One stream: its own order protects the block. */
    void *first = get(computing);
    CHECK(cudaMemsetAsync(first, 1, SIZE, computing));
    CHECK(vramalloc_free(first));
    void *second = get(computing);
    CHECK(cudaMemsetAsync(second, 2, SIZE, computing));
    printf("the same block again, at once: %s\n", first == second ? "yes" : "no");

    /* Another stream uses it too, and is named before the free. */
    CHECK(cudaStreamSynchronize(computing));
    for (int i = 0; i < 50; i++)
        CHECK(cudaMemsetAsync(second, 3, SIZE, copying));
    CHECK(vramalloc_record_stream(second, copying));
    CHECK(vramalloc_free(second));
    void *third = get(computing);
    CHECK(cudaMemsetAsync(third, 4, SIZE, computing));
    printf("while the other stream uses it: %s\n", second == third ? "yes" : "no");
    CHECK(cudaStreamSynchronize(computing));
    CHECK(cudaMemcpy(&byte, third, 1, cudaMemcpyDeviceToHost));
    printf("nobody else wrote: %s\n", byte == 4 ? "yes" : "no");

    CHECK(cudaStreamSynchronize(copying));
    void *fourth = get(computing);
    printf("when the other stream is done: %s\n", second == fourth ? "yes" : "no");
    CHECK(vramalloc_free(third));
    CHECK(vramalloc_free(fourth));
    CHECK(cudaStreamDestroy(copying));
    CHECK(cudaStreamDestroy(computing));
    return 0;
}
