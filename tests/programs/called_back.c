/*
 * A profiler: the driver calls the program back at the beginning of each of
 * its functions, and the program frees there, from whatever the thread is
 * inside. What stays live keeps its contents, all that was freed is freed
 * once, and a second free is refused.
 *
 * Over the simulated driver alone, which has a function to ask for that.
 */
#include "gpu.h"

#include <dlfcn.h>

enum { MIB = 1 << 20, COUNT = 24, ROUNDS = 4 };

typedef void (*watcher)(const char *name);

static void *blocks[COUNT], *pages[COUNT];
static __thread int inside;
static int next, armed, wrong, twice;

/* Frees every second block, and the page-locked one beside it. */
static void free_one(const char *name) {
    if (!armed || inside || next >= COUNT || strncmp(name, "cu", 2))
        return;
    inside = 1;
    wrong += gpu_free(blocks[next]) != GPU_SUCCESS;
    wrong += gpu_free_host(pages[next]) != GPU_SUCCESS;
    if (!twice++) {
        wrong += gpu_free(blocks[next]) == GPU_SUCCESS;
        wrong += gpu_free_host(pages[next]) == GPU_SUCCESS;
    }
    next += 2;
    inside = 0;
}

static void check(uint32_t round) {
    static uint32_t words[MIB / 4];
    for (int i = 1; i < COUNT; i += 2) {
        GPU(gpu_copy_out(words, blocks[i], MIB));
        for (int k = 0; k < MIB / 4; k++)
            wrong += words[k] != round * 100 + (uint32_t)i;
        GPU(gpu_free(blocks[i]));
        GPU(gpu_free_host(pages[i]));
    }
}

int main(void) {
    void (*watch)(watcher);
    gpu_stream stream;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&watch = driver ? dlsym(driver, "sim_cuda_watch") : NULL;
    if (!watch) {
        printf("this driver calls nobody back\n");
        return 0;
    }
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        void *more[8];
        for (int i = 0; i < COUNT; i++) {
            GPU(gpu_malloc(&blocks[i], MIB));
            GPU(gpu_malloc_host(&pages[i], 4096));
            GPU(gpu_fill(stream, blocks[i], round * 100 + (uint32_t)i, MIB / 4,
                         50000));
        }
        next = 0;
        watch(free_one);
        /* The driver is asked for memory, marks, waits. */
        armed = 1;
        for (int i = 0; i < 8; i++)
            GPU(gpu_malloc(&more[i], (size_t)(20 + 40 * round) * MIB));
        armed = 0;
        watch(NULL);
        for (; next < COUNT; next += 2) {
            GPU(gpu_free(blocks[next]));
            GPU(gpu_free_host(pages[next]));
        }
        for (int i = 0; i < 8; i++) {
            GPU(gpu_set_async(more[i], 0xee, 2 * MIB, stream));
            GPU(gpu_free(more[i]));
        }
        GPU(gpu_stream_sync(stream));
        check(round);
    }
    printf("wrong: %d\n", wrong);
    return wrong != 0;
}
