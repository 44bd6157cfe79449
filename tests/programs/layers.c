/*
 * Allocates through one layer and frees through another: the program's own
 * way, the driver's functions by dlsym, two runtimes of different versions
 * opened by hand as a scripting language does, and the free that is ordered
 * in a stream. Each pair is repeated until a leak would exhaust the device.
 *
 *   layers local|global|deepbind|deep-later   how the runtimes are opened
 *   layers crossed   one opened with deepbind frees blocks of the program's
 *
 * A runtime opened with deepbind looks past preloaded libraries, so its
 * memory goes back by the way it came. One that was there already, in the
 * usual way, is the same for whoever opens it so later.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include "find.h"

enum { ROUNDS = 40 };

static const size_t size = (size_t)1 << 30;

typedef int (*allocate_fn)(void **, size_t);
typedef int (*release_fn)(void *);

static int (*driver_allocate)(unsigned long long *, size_t);
static int (*driver_release)(unsigned long long);
static int (*driver_release_in_order)(unsigned long long, void *);

static int allocate_by_driver(void **block, size_t bytes) {
    unsigned long long at = 0;
    int code = driver_allocate(&at, bytes);
    *block = (void *)(uintptr_t)at;
    return code;
}

static int release_by_driver(void *block) {
    return driver_release((uintptr_t)block);
}

static int release_in_order(void *block) {
    return driver_release_in_order((uintptr_t)block, NULL);
}

struct layer {
    const char *name;
    allocate_fn allocate; /* NULL: it only frees */
    release_fn release;
};

static struct layer runtime_of(const char *name, int how, int later) {
    void *library = dlopen(name, RTLD_NOW | how);
    if (library && later)
        library = dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
    struct layer layer = {name, NULL, NULL};
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    layer.allocate = (allocate_fn)dlsym(library, "cudaMalloc");
    layer.release = (release_fn)dlsym(library, "cudaFree");
    return layer;
}

static void try_pair(const struct layer *from, const struct layer *to) {
    int right = 0, code = 0;
    for (uint32_t round = 1; round <= ROUNDS && !code; round++) {
        void *block;
        uint32_t word = 0;
        code = from->allocate(&block, size);
        if (code)
            break;
        char *last = (char *)block + size - sizeof word;
        GPU(gpu_copy_in(last, &round, sizeof round));
        GPU(gpu_copy_out(&word, last, sizeof word));
        right += word == round;
        code = to->release(block);
    }
    GPU(gpu_sync());
    printf("%s to %s: %d right, %d\n", from->name, to->name, right, code);
}

/* A free that looks past preloaded libraries may fail. What others hold stays. */
static int cross(void) {
    enum { BLOCKS = 8 };
    static const size_t sizes[] = {512, 1 << 16, 3 << 20};
    struct layer deep = runtime_of("libcudart.so.13", RTLD_LOCAL | RTLD_DEEPBIND, 0);
    int right = 0;
    for (int n = 0; n < 3; n++) {
        void *blocks[BLOCKS];
        for (uint32_t i = 0; i < BLOCKS; i++) {
            GPU(gpu_malloc(&blocks[i], sizes[n]));
            GPU(gpu_copy_in(blocks[i], &i, sizeof i));
        }
        for (int gone = 0; gone < BLOCKS; gone += 2)
            deep.release(blocks[gone]);
        for (uint32_t i = 1; i < BLOCKS; i += 2) {
            uint32_t word = 0;
            right += !gpu_copy_out(&word, blocks[i], sizeof word) && word == i;
        }
    }
    printf("left alone: %d\n", right);
    return 0;
}

int main(int argc, char **argv) {
    const char *how = argc == 2 ? argv[1] : "";
    if (!strcmp(how, "crossed")) {
        GPU(gpu_set_device(0));
        return cross();
    }
    int deep = !strcmp(how, "deepbind");
    int later = !strcmp(how, "deep-later");
    int flags = deep ? RTLD_LOCAL | RTLD_DEEPBIND
                     : strcmp(how, "global") ? RTLD_LOCAL : RTLD_GLOBAL;
    if (!deep && !later && strcmp(how, "global") && strcmp(how, "local")) {
        fprintf(stderr, "usage: layers local|global|deepbind|deep-later\n");
        return 2;
    }
    GPU(gpu_set_device(0));
    *(void **)&driver_allocate = find("cuMemAlloc_v2");
    *(void **)&driver_release = find("cuMemFree_v2");
    *(void **)&driver_release_in_order = find_if_there("cuMemFreeAsync");
    struct layer layers[] = {
        {"its own", gpu_malloc, gpu_free},
        {"the driver", allocate_by_driver, release_by_driver},
        runtime_of("libcudart.so.13", flags, later),
        runtime_of("libcudart.so.12", flags, later),
        {"the driver in order", NULL, release_in_order},
    };
    int count = driver_release_in_order ? 5 : 4;
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < count; to++)
            if (!deep || from == to)
                try_pair(&layers[from], &layers[to]);
    return 0;
}
