/*
 * The ways to take device memory, each as the kind of program does: by the
 * runtime where it has a function for that, else by the driver, with
 * GPU_RESOLVE=procaddress by cuGetProcAddress.
 */
#ifndef PROGRAMS_FAMILIES_H
#define PROGRAMS_FAMILIES_H

#include "find.h"
#include "gpu.h"

enum { FAMILIES = 6, WAYS = FAMILIES + 1 };

typedef unsigned long long address;

struct location { int kind, id; };
struct access { struct location location; int flags; };
struct properties {
    int kind, handles;
    struct location location;
    void *security;
    union { size_t most; unsigned char flags[8]; };
    char rest[56];
};
struct taking {
    struct properties pool;
    void *accesses;
    size_t access_count, size;
    address at;
};
struct shape { size_t width, height; int format; unsigned channels; };

/* What was taken: the way, and what is needed to give it back. */
struct taken {
    int way;
    address at;
    size_t size;
    void *handle, *graph;
};

/* The stream that pools serve. */
static gpu_stream ordered;

static struct properties here = {.kind = 1, .location = {1, 0}};

/* A function of the driver by the name of its ABI, found as the program finds
 * the others. */
static inline void *reach(const char *name) {
    typedef int (*resolver)(const char *, void **, int, uint64_t, int *);
    const char *how = getenv("GPU_RESOLVE");
    if (!how || strcmp(how, "procaddress"))
        return find(name);
    char base[64];
    snprintf(base, sizeof base, "%s", name);
    char *version = strstr(base, "_v2");
    if (version)
        *version = 0;
    resolver resolve = (resolver)find("cuGetProcAddress_v2");
    void *found = NULL;
    int status = 0;
    if (resolve(base, &found, 12020, 0, &status) || !found) {
        fprintf(stderr, "the driver lacks %s\n", base);
        exit(1);
    }
    return found;
}

/* Such a function, called with these types. */
#define CALL(name, parameters, ...)                                            \
    ({                                                                         \
        static int(*call_of) parameters;                                       \
        if (!call_of)                                                          \
            *(void **)&call_of = reach(name);                                  \
        call_of(__VA_ARGS__);                                                  \
    })

#ifndef USE_DRIVER
struct channels { int bits[4], kind; };

int cudaMallocManaged(void **device, size_t size, unsigned flags);
int cudaMallocArray(void **array, const struct channels *channels, size_t width,
                    size_t height, unsigned flags);
int cudaFreeArray(void *array);
int cudaGraphCreate(void **graph, unsigned flags);
int cudaGraphAddMemAllocNode(void **node, void *graph, void *const *after,
                             size_t count, struct taking *taking);
int cudaGraphAddMemFreeNode(void **node, void *graph, void *const *after,
                            size_t count, void *device);
int cudaDeviceGetMemPool(void **pool, int device);
int cudaMemPoolTrimTo(void *pool, size_t keep);
int cudaDeviceGraphMemTrim(int device);
/* Each major version has one of them. */
#pragma weak cudaGetDeviceProperties
#pragma weak cudaGetDeviceProperties_v2
int cudaGetDeviceProperties(void *properties, int device);
int cudaGetDeviceProperties_v2(void *properties, int device);
#endif

static inline int take_plain(struct taken *to) {
    return gpu_malloc((void **)&to->at, to->size);
}

static inline int give_plain(struct taken *from) {
    return gpu_free((void *)from->at);
}

static inline int take_in_order(struct taken *to) {
    return gpu_malloc_async((void **)&to->at, to->size, ordered);
}

static inline int give_in_order(struct taken *from) {
    return gpu_free_async((void *)from->at, ordered);
}

static inline int take_managed(struct taken *to) {
#ifdef USE_DRIVER
    return CALL("cuMemAllocManaged", (address *, size_t, unsigned), &to->at,
                to->size, 1);
#else
    return cudaMallocManaged((void **)&to->at, to->size, 1);
#endif
}

static inline int take_virtual(struct taken *to) {
    struct access all = {{1, 0}, 3};
    size_t unit = 0;
    int code = CALL("cuMemGetAllocationGranularity",
                    (size_t *, const void *, int), &unit, &here, 0);
    if (code)
        return code;
    to->size = (to->size + unit - 1) / unit * unit;
    code = CALL("cuMemCreate", (void **, size_t, const void *, address),
                &to->handle, to->size, &here, 0);
    if (code)
        return code;
    GPU(CALL("cuMemAddressReserve",
             (address *, size_t, size_t, address, address), &to->at, to->size,
             0, 0, 0));
    GPU(CALL("cuMemMap", (address, size_t, size_t, void *, address), to->at,
             to->size, 0, to->handle, 0));
    return CALL("cuMemSetAccess", (address, size_t, const void *, size_t),
                to->at, to->size, &all, 1);
}

static inline int give_virtual(struct taken *from) {
    int code = CALL("cuMemUnmap", (address, size_t), from->at, from->size);
    if (!code)
        code = CALL("cuMemRelease", (void *), from->handle);
    return code ? code
                : CALL("cuMemAddressFree", (address, size_t), from->at,
                       from->size);
}

static inline int take_array(struct taken *to) {
    /* No array has more than 131072 columns. */
    size_t rows = to->size > (size_t)64 << 20 ? 32768 : 1024;
#ifdef USE_DRIVER
    struct shape shape = {to->size / rows, rows, 1, 1};
    return CALL("cuArrayCreate_v2", (void **, const void *), &to->handle,
                &shape);
#else
    struct channels bytes = {{8, 0, 0, 0}, 1};
    return cudaMallocArray(&to->handle, &bytes, to->size / rows, rows, 0);
#endif
}

static inline int give_array(struct taken *from) {
#ifdef USE_DRIVER
    return CALL("cuArrayDestroy", (void *), from->handle);
#else
    return cudaFreeArray(from->handle);
#endif
}

#ifdef USE_DRIVER
/* Adds a node that allocates, by the call that this version of CUDA has for
   nodes of any kind; 0: by that for nodes that allocate. */
static inline int add_taking(void **node, void *graph, struct taking *taking,
                             int version) {
    struct {
        int kind, reserved[3];
        struct taking taking;
        char rest[256];
    } any = {.kind = 10, .taking = *taking};
    void *call;
    int status, code;
    if (!version)
        return CALL("cuGraphAddMemAllocNode",
                    (void **, void *, void *const *, size_t, void *), node,
                    graph, NULL, 0, taking);
    GPU(CALL("cuGetProcAddress_v2",
             (const char *, void **, int, uint64_t, int *), "cuGraphAddNode",
             &call, version, 0, &status));
    if (version < 12030)
        code = ((int (*)(void **, void *, void *const *, size_t, void *))call)(
            node, graph, NULL, 0, &any);
    else
        code = ((int (*)(void **, void *, void *const *, const void *, size_t,
                         void *))call)(node, graph, NULL, NULL, 0, &any);
    taking->at = any.taking.at;
    return code;
}
#endif

/* A graph that allocates and frees; adds the nodes. NODES: see above. */
static inline int add_nodes(void *graph, struct taking *taking) {
    void *node;
#ifdef USE_DRIVER
    const char *nodes = getenv("NODES");
    int code = add_taking(&node, graph, taking, nodes ? atoi(nodes) : 0);
    return code ? code
                : CALL("cuGraphAddMemFreeNode",
                       (void **, void *, void *const *, size_t, address), &node,
                       graph, &node, 1, taking->at);
#else
    int code = cudaGraphAddMemAllocNode(&node, graph, NULL, 0, taking);
    return code ? code
                : cudaGraphAddMemFreeNode(&node, graph, &node, 1,
                                          (void *)taking->at);
#endif
}

static inline int take_graph(struct taken *to) {
    struct taking taking = {.pool = here, .size = to->size};
#ifdef USE_DRIVER
    GPU(CALL("cuGraphCreate", (void **, unsigned), &to->graph, 0));
#else
    GPU(cudaGraphCreate(&to->graph, 0));
#endif
    int code = add_nodes(to->graph, &taking);
    if (!code)
        code = gpu_graph_prepare(&to->handle, to->graph);
    return code ? code : gpu_graph_launch(to->handle, NULL);
}

static inline int give_graph(struct taken *from) {
    return gpu_graph_destroy(from->handle);
}

static const struct {
    const char *name;
    int (*take)(struct taken *), (*give)(struct taken *);
} ways[WAYS] = {
    {"plain", take_plain, give_plain},
    {"pool", take_in_order, give_in_order},
    {"virtual", take_virtual, give_virtual},
    {"managed", take_managed, give_plain},
    {"array", take_array, give_array},
    {"graph", take_graph, give_graph},
    {"late", take_plain, give_in_order},
};

/* The way with this name at the beginning of a text that `end` follows, or -1. */
static inline int way_of(const char *text, char end) {
    for (int way = 0; way < WAYS; way++) {
        size_t length = strlen(ways[way].name);
        if (!strncmp(text, ways[way].name, length) && text[length] == end)
            return way;
    }
    return -1;
}

static inline size_t size_of(const char *text) {
    char *end;
    size_t number = strtoull(text, &end, 10);
    return number << (*end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0);
}

/* How large the device is said to be: by the runtime, where that is a shared
 * library, else by the driver. */
static inline int device_size(size_t *size) {
#ifndef USE_DRIVER
    int (*tell)(void *, int) = cudaGetDeviceProperties_v2;
    if (!tell)
        tell = cudaGetDeviceProperties;
    if (tell) {
        /* The size stands behind the name and what identifies the device. */
        static size_t properties[512];
        int code = tell(properties, 0);
        *size = properties[288 / sizeof *properties];
        return code;
    }
#endif
    return CALL("cuDeviceTotalMem_v2", (size_t *, int), size, 0);
}

/* Trims the device's pool and the memory of its graphs. */
static inline int trim(void) {
    void *pool;
#ifdef USE_DRIVER
    int code = CALL("cuDeviceGetMemPool", (void **, int), &pool, 0);
    if (!code)
        code = CALL("cuMemPoolTrimTo", (void *, size_t), pool, 0);
    return code ? code : CALL("cuDeviceGraphMemTrim", (int), 0);
#else
    int code = cudaDeviceGetMemPool(&pool, 0);
    if (!code)
        code = cudaMemPoolTrimTo(pool, 0);
    return code ? code : cudaDeviceGraphMemTrim(0);
#endif
}

#endif
