/*
 * Memory that several libraries ask for.
 *
 *   owners LIBRARY... STEP...   LIBRARY is a file's path, for the letters from A
 *                               on; a STEP is one of
 *     +LETTER:SIZE:COUNT        the library takes so many blocks
 *     ~LETTER:SIZE:COUNT        it takes one and the program frees it, so many
 *                               times
 *     -LETTER:COUNT             the program frees the newest so many of its blocks
 *     vLETTER:SIZE              it takes virtual memory (cuMemCreate)
 *     wLETTER                   the program releases that
 *     ?                         asks how much is free
 *     xLETTER                   the program unloads it
 *     !                         resets the device
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>

#include "families.h"

enum { LIBRARIES = 40, BLOCKS = 4096 };

typedef int (*function)(void *, void *, void *, void *);
typedef int (*caller)(function, void *, void *, void *, void *);

static struct library {
    caller call;
    void *blocks[BLOCKS];
    int count;
    void *handle;
    void *loaded;
} libraries[LIBRARIES];

static function allocate(void) {
#ifdef USE_DRIVER
    return (function)(void *)gpu_driver.cuMemAlloc;
#else
    return (function)(void *)cudaMalloc;
#endif
}

static void *take(struct library *library, size_t size) {
    void *block = NULL;
    GPU(library->call(allocate(), &block, (void *)size, NULL, NULL));
    return block;
}

static void take_virtual_by(struct library *library, size_t size) {
    /* The driver sets nothing up by itself. */
    GPU(gpu_set_device(0));
    function create = (function)reach("cuMemCreate");
    GPU(library->call(create, &library->handle, (void *)size, &here, NULL));
}

static void release(struct library *library) {
    GPU(CALL("cuMemRelease", (void *), library->handle));
}

/* The runtime does so in the first call that needs it, which may be for memory. */
static void begin(void) {
#ifdef USE_DRIVER
    GPU(gpu_set_device(0));
#endif
}

static void step(const char *what) {
    struct library *library = &libraries[what[1] - 'A'];
    size_t size = 0;
    int count = 1;
    if (what[0] == '?') {
        size_t left, all;
        GPU(gpu_mem_info(&left, &all));
        return;
    }
    if (what[0] == '!') {
        GPU(gpu_reset());
        begin();
        return;
    }
    if (what[0] == 'x') {
        GPU(dlclose(library->loaded));
        return;
    }
    if (what[0] == '-')
        sscanf(what + 2, ":%d", &count);
    else
        sscanf(what + 2, ":%zu:%d", &size, &count);
    for (int i = 0; i < count; i++) {
        switch (what[0]) {
        case '+':
            library->blocks[library->count++] = take(library, size);
            break;
        case '~':
            GPU(gpu_free(take(library, size)));
            break;
        case '-':
            GPU(gpu_free(library->blocks[--library->count]));
            break;
        case 'v':
            take_virtual_by(library, size);
            break;
        default:
            release(library);
        }
    }
}

int main(int count, char **arguments) {
    int loaded = 0;
    begin();
    for (int i = 1; i < count; i++) {
        if (arguments[i][0] != '/') {
            step(arguments[i]);
            continue;
        }
        void *library = dlopen(arguments[i], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        libraries[loaded].loaded = library;
        *(void **)&libraries[loaded++].call = dlsym(library, "asker_call");
    }
    return 0;
}
