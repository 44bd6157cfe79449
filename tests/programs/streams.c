/*
 * Makes and destroys streams of both sorts, each with a kernel pending on it,
 * and frees no memory meanwhile. Then frees the memory that the last of the
 * kernels write to, and checks that nothing else is written.
 *
 *   streams COUNT
 *
 * Exit: 0 right, 3 a late kernel wrote into another block.
 */
#include "gpu.h"

enum { LATE = 16, BLOCK = 1 << 20, WORDS = BLOCK / 4, STAMP = 0x5a };

static const uint64_t short_ns = 5000, long_ns = 100 * 1000 * 1000;

static void launch_and_destroy(int number, void *block, uint64_t ns) {
    gpu_stream stream;
    if (number % 2)
        GPU(gpu_stream_create(&stream));
    else
        GPU(gpu_stream_create_blocking(&stream));
    /* Those that no copy waits for end last. */
    GPU(gpu_fill(stream, block, 0xdeadbeef, WORDS, ns * (1 + number % 2)));
    GPU(gpu_stream_destroy(stream));
}

int main(int argc, char **argv) {
    static unsigned char host[BLOCK];
    void *blocks[LATE], *others[LATE];
    int count = argc == 2 ? atoi(argv[1]) : 0, right = 0;
    if (count < 1) {
        fprintf(stderr, "usage: streams COUNT\n");
        return 2;
    }
    GPU(gpu_set_device(0));
    for (int i = 0; i < LATE; i++)
        GPU(gpu_malloc(&blocks[i], BLOCK));
    for (int i = 0; i < count; i++)
        launch_and_destroy(i, blocks[0], short_ns);
    GPU(gpu_sync());

    for (int i = 0; i < LATE; i++)
        launch_and_destroy(i, blocks[i], long_ns);
    for (int i = 0; i < LATE; i++)
        GPU(gpu_free(blocks[i]));
    memset(host, STAMP, sizeof host);
    for (int i = 0; i < LATE; i++) {
        GPU(gpu_malloc(&others[i], BLOCK));
        GPU(gpu_copy_in(others[i], host, BLOCK));
    }
    GPU(gpu_sync());
    for (int i = 0; i < LATE; i++) {
        GPU(gpu_copy_out(host, others[i], BLOCK));
        right += gpu_is_all(host, STAMP, BLOCK);
        GPU(gpu_free(others[i]));
    }
    printf("%d of %d blocks right\n", right, LATE);
    return right == LATE ? 0 : 3;
}
