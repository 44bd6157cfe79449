/*
 * The C API of libvramalloc.so, found as a program that is not linked with it
 * finds it: among what is loaded (preloaded), or with API_LIBRARY in that file,
 * which dlopen keeps to itself.
 */
#ifndef PROGRAMS_API_H
#define PROGRAMS_API_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../cabi/include/vramalloc.h"

#define API_FUNCTIONS(F) \
    F(error_name)        \
    F(malloc)            \
    F(malloc_on_stream)  \
    F(record_stream)     \
    F(release_captures)  \
    F(torch_malloc)      \
    F(torch_free)        \
    F(torch_hook)        \
    F(free)              \
    F(empty_cache)       \
    F(ctl)               \
    F(whose)             \
    F(region_begin)      \
    F(region_end)        \
    F(pause)             \
    F(resume)            \
    F(scope_begin)       \
    F(scope_end)         \
    F(group_malloc)      \
    F(group_allocations) \
    F(group_free)

static struct {
#define API_DECLARE(name) __typeof__(vramalloc_##name) *name;
    API_FUNCTIONS(API_DECLARE)
#undef API_DECLARE
} api;

static void api_load(void) {
    const char *path = getenv("API_LIBRARY");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : RTLD_DEFAULT;
    if (path && !library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define API_FIND(name)                                             \
    *(void **)&api.name = dlsym(library, "vramalloc_" #name);      \
    if (!api.name) {                                               \
        fprintf(stderr, "there is no vramalloc_%s\n", #name);      \
        exit(1);                                                   \
    }
    API_FUNCTIONS(API_FIND)
#undef API_FIND
}

/* Ends the program where a call of the API does not answer as it should. */
#define EXPECT(code, call)                                                     \
    do {                                                                       \
        int expect_code = (call);                                              \
        if (expect_code != (code)) {                                           \
            fprintf(stderr, "%s:%d: %s: %d (%s), not %d\n", __FILE__,          \
                    __LINE__, #call, expect_code, api.error_name(expect_code), \
                    (int)(code));                                              \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#define API(call) EXPECT(VRAMALLOC_SUCCESS, call)

/* Memory of the current device for a stream. */
static inline void *api_get(size_t size, void *stream) {
    void *memory;
    API(api.malloc_on_stream(size, VRAMALLOC_CURRENT_DEVICE, stream, &memory));
    return memory;
}

/* Tells that a stream uses a block. */
static inline int api_record(void *memory, void *stream) {
    return api.record_stream(memory, stream);
}

#endif
