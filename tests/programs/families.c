/*
 * Takes device memory in the ways that there are, step by step, and tells what
 * came of it.
 *
 *   families STEP...
 *
 *   plain:N pool:N virtual:N managed:N array:N graph:N
 *           takes N bytes (K, M, G behind the number) that way; a graph frees
 *           what it takes
 *   give    gives the last one back that is there
 *   sync    waits for the device
 *   trim    trims the pool and the graphs' memory
 *   info    free and total memory, in KiB, and the device's size
 *   own     what the simulated driver counts by families, in KiB
 *
 * Each step prints a line with the first code that was not 0.
 */
#include "find.h"
#include "gpu.h"

enum { MOST = 64, WAYS = 6 };

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

struct taken {
    int way;
    address at;
    size_t size;
    void *handle, *graph;
};

static struct taken taken[MOST];
static int count;

/* A function of the driver by its name, called with these types. */
#define CALL(name, parameters, ...)                                            \
    (((int(*) parameters)find(name))(__VA_ARGS__))

static const struct properties here = {.kind = 1, .location = {1, 0}};

static int take_plain(struct taken *to) {
    return CALL("cuMemAlloc_v2", (address *, size_t), &to->at, to->size);
}

static int give_plain(struct taken *from) {
    return CALL("cuMemFree_v2", (address), from->at);
}

static int take_in_order(struct taken *to) {
    return CALL("cuMemAllocAsync", (address *, size_t, gpu_stream), &to->at,
                to->size, NULL);
}

static int give_in_order(struct taken *from) {
    return CALL("cuMemFreeAsync", (address, gpu_stream), from->at, NULL);
}

static int take_managed(struct taken *to) {
    return CALL("cuMemAllocManaged", (address *, size_t, unsigned), &to->at,
                to->size, 1);
}

static int take_virtual(struct taken *to) {
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

static int give_virtual(struct taken *from) {
    int code = CALL("cuMemUnmap", (address, size_t), from->at, from->size);
    if (!code)
        code = CALL("cuMemRelease", (void *), from->handle);
    return code ? code
                : CALL("cuMemAddressFree", (address, size_t), from->at,
                       from->size);
}

static int take_array(struct taken *to) {
    struct shape shape = {to->size / 1024, 1024, 1, 1};
    return CALL("cuArrayCreate_v2", (void **, const void *), &to->handle,
                &shape);
}

static int give_array(struct taken *from) {
    return CALL("cuArrayDestroy", (void *), from->handle);
}

static int take_graph(struct taken *to) {
    struct taking taking = {.pool = here, .size = to->size};
    void *node;
    GPU(CALL("cuGraphCreate", (void **, unsigned), &to->graph, 0));
    int code = CALL("cuGraphAddMemAllocNode",
                    (void **, void *, void *const *, size_t, void *), &node,
                    to->graph, NULL, 0, &taking);
    if (!code)
        code = CALL("cuGraphAddMemFreeNode",
                    (void **, void *, void *const *, size_t, address), &node,
                    to->graph, &node, 1, taking.at);
    if (!code)
        code = CALL("cuGraphInstantiateWithFlags", (void **, void *, address),
                    &to->handle, to->graph, 0);
    return code ? code
                : CALL("cuGraphLaunch", (void *, gpu_stream), to->handle, NULL);
}

static int give_graph(struct taken *from) {
    int code = CALL("cuGraphExecDestroy", (void *), from->handle);
    return code ? code : CALL("cuGraphDestroy", (void *), from->graph);
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
};

static size_t size_of(const char *text) {
    char *end;
    size_t number = strtoull(text, &end, 10);
    return number << (*end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0);
}

static int take(const char *step) {
    for (int way = 0; way < WAYS; way++) {
        size_t length = strlen(ways[way].name);
        if (strncmp(step, ways[way].name, length) || step[length] != ':')
            continue;
        struct taken *to = &taken[count];
        *to = (struct taken){.way = way, .size = size_of(step + length + 1)};
        int code = ways[way].take(to);
        count += !code;
        return code;
    }
    fprintf(stderr, "what is %s?\n", step);
    exit(2);
}

static int give(void) {
    if (!count)
        return 0;
    struct taken *from = &taken[--count];
    return ways[from->way].give(from);
}

static int trim(void) {
    void *pool;
    int code = CALL("cuDeviceGetMemPool", (void **, int), &pool, 0);
    if (!code)
        code = CALL("cuMemPoolTrimTo", (void *, size_t), pool, 0);
    return code ? code : CALL("cuDeviceGraphMemTrim", (int), 0);
}

static int tell_info(void) {
    size_t available = 0, total = 0, size = 0;
    int code = gpu_mem_info(&available, &total);
    if (!code)
        code = CALL("cuDeviceTotalMem_v2", (size_t *, int), &size, 0);
    printf("free %zu, total %zu, size %zu\n", available >> 10, total >> 10,
           size >> 10);
    return code;
}

static int tell_own(void) {
    uint64_t (*bytes)(const char *, int);
    *(void **)&bytes = find("sim_cuda_bytes");
    for (int way = 0; way < WAYS; way++)
        printf("%s %zu, ", ways[way].name, (size_t)bytes(ways[way].name, 0) >> 10);
    printf("all %zu\n", (size_t)bytes(NULL, 0) >> 10);
    return 0;
}

int main(int argc, char **argv) {
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    for (int i = 1; i < argc && count < MOST; i++) {
        const char *step = argv[i];
        int code = !strcmp(step, "give")   ? give()
                   : !strcmp(step, "sync") ? gpu_sync()
                   : !strcmp(step, "trim") ? trim()
                   : !strcmp(step, "info") ? tell_info()
                   : !strcmp(step, "own")  ? tell_own()
                                           : take(step);
        printf("%s: %d\n", step, code);
        fflush(stdout);
    }
    return 0;
}
