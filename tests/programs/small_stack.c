/*
 * A thread with a small stack, as runtimes give their own threads.
 *
 *   small_stack KIB WAY    the thread takes and frees blocks of every kind on a
 *                          stack of so many KiB; WAY is one of
 *     first                nobody has used CUDA's memory before it
 *     later                the program's first thread has
 *     full                 later, and it asks for more than there is
 *     exit                 later, and it ends the process
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <pthread.h>

enum { OFTEN = 700 };

static const char *way;

static int is(const char *word) { return !strcmp(way, word); }

static void pair(size_t size) {
    void *block = NULL;
    GPU(gpu_malloc(&block, size));
    GPU(gpu_free(block));
}

static void *work(void *unused) {
    size_t sizes[] = {1, 4096, 65536, 65537, 1 << 20, 30 << 20};
    GPU(gpu_set_device(0));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int n = 0; n < OFTEN; n++)
            pair(sizes[i]);
    if (is("full")) {
        void *block = NULL;
        printf("too much: %d\n", gpu_malloc(&block, (size_t)1 << 40));
    }
    printf("served\n");
    if (is("exit"))
        exit(0);
    return unused;
}

int main(int argc, char **argv) {
    pthread_attr_t small;
    pthread_t thread;
    if (argc != 3)
        return 2;
    way = argv[2];
    GPU(gpu_set_device(0));
    if (!is("first"))
        pair(4096);
    if (pthread_attr_init(&small) ||
        pthread_attr_setstacksize(&small, strtoul(argv[1], NULL, 10) << 10) ||
        pthread_create(&thread, &small, work, NULL) || pthread_join(thread, NULL))
        return 1;
    return 0;
}
