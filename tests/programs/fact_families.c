/*
 * What memory takes that is not plainly allocated: that of pools, managed memory,
 * arrays and graphs, as the driver counts free bytes and tells by attributes. What
 * can still be had where plain memory fills the device, and what it costs to ask
 * which device and context are current.
 */
#include "facts.h"
#include "families.h"

enum {
    RESERVED = 5, USED = 7,
    GRAPH_RESERVED = 2,
    KINDS_OF_PLACES = 8,
    SMALL = 256, PIECES = 512, OFTEN = 1000
};

static long long available(void) {
    size_t now;
    GPU(gpu_mem_info(&now, NULL));
    return (long long)now;
}

static void *own_pool(void) {
    void *pool;
    GPU(CALL("cuDeviceGetMemPool", (void **, int), &pool, 0));
    return pool;
}

static long long pool_bytes(int attribute) {
    uint64_t bytes = 0;
    GPU(CALL("cuMemPoolGetAttribute", (void *, int, void *), own_pool(), attribute, &bytes));
    return (long long)bytes;
}

static long long graph_bytes(void) {
    uint64_t bytes = 0;
    GPU(CALL("cuDeviceGetGraphMemAttribute", (int, int, void *), 0, GRAPH_RESERVED, &bytes));
    return (long long)bytes;
}

static int take(struct taken *to, const char *way, size_t size) {
    *to = (struct taken){.way = way_of(way, 0), .size = size};
    return ways[to->way].take(to);
}

static int give(struct taken *from) { return ways[from->way].give(from); }

/* What a pool takes for requests, one after the other, and when it lets go. */
static void pools(void) {
    static const size_t sizes[] = {1, 1 << 20, 31 << 20, 33 << 20, 100 << 20};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    struct taken taken[SIZES];
    GPU(gpu_stream_create(&ordered));
    long long before = available();
    for (int i = 0; i < SIZES; i++) {
        long long held = pool_bytes(RESERVED);
        GPU(take(&taken[i], "pool", sizes[i]));
        fact(pool_bytes(RESERVED) - held, "amount.pool.grows.%zu", sizes[i]);
    }
    fact(before - available() == pool_bytes(RESERVED), "pool.reserved_is_what_it_takes");
    fact(pool_bytes(USED), "amount.pool.used");
    for (int i = 0; i < SIZES; i++)
        GPU(give(&taken[i]));
    fact(pool_bytes(RESERVED) > 0, "pool.keeps_until_it_is_waited_for");
    GPU(gpu_stream_sync(ordered));
    fact(pool_bytes(RESERVED), "amount.pool.reserved.after_stream_sync");
    GPU(gpu_sync());
    fact(pool_bytes(RESERVED), "amount.pool.reserved.after_device_sync");
    GPU(trim());
    fact(pool_bytes(RESERVED), "amount.pool.reserved.after_trim");
    GPU(gpu_spin(NULL, KERNEL_NS));
    uint64_t begin = now_ns();
    GPU(take(&taken[0], "pool", 200 << 20));
    fact(now_ns() - begin > KERNEL_NS / 2, "pool.growth_waits");
    GPU(give(&taken[0]));
    GPU(gpu_sync());
    GPU(trim());
    GPU(gpu_stream_destroy(ordered));
    ordered = NULL;
}

/* Waits until a stream is done, or until half of a kernel's time is over. */
static void await_idle(gpu_stream stream, uint64_t begin) {
    while (CALL("cuStreamQuery", (gpu_stream), stream) && now_ns() - begin < KERNEL_NS / 2)
        ;
}

/* What a stream with nothing to do gets from a pool while another one is busy: when that
 * is there, and whether what it gives back is gone at once. */
static void beside(void) {
    enum { FIRST = 12 << 20, FITS = 8 << 20, GROWS = 40 << 20 };
    gpu_stream busy, idle;
    struct taken first, more;
    GPU(gpu_stream_create(&busy));
    GPU(gpu_stream_create(&idle));
    ordered = busy;
    GPU(take(&first, "pool", FIRST));
    GPU(gpu_sync());
    long long held = pool_bytes(RESERVED);
    GPU(gpu_spin(busy, KERNEL_NS));
    ordered = idle;
    for (int grows = 0; grows < 2; grows++) {
        const char *how = grows ? "grows" : "fits";
        uint64_t begin = now_ns();
        GPU(take(&more, "pool", grows ? GROWS : FITS));
        fact((pool_bytes(RESERVED) > held) == grows, "pool.beside.%s", how);
        await_idle(idle, begin);
        fact(now_ns() - begin < KERNEL_NS / 2, "pool.beside.%s.is_there", how);
        GPU(give(&more));
        await_idle(idle, begin);
        GPU(trim());
        fact(pool_bytes(RESERVED) == held, "pool.beside.%s.is_gone", how);
    }
    fact(CALL("cuStreamQuery", (gpu_stream), busy) != 0, "pool.beside.others_are_busy");
    ordered = busy;
    GPU(give(&first));
    GPU(gpu_sync());
    GPU(trim());
    GPU(gpu_stream_destroy(idle));
    GPU(gpu_stream_destroy(busy));
    ordered = NULL;
}

static void others(void) {
    struct taken taken;
    long long before;
    for (int turn = 1; turn <= 2; turn++) {
        before = available();
        GPU(take(&taken, "managed", 64 << 20));
        fact(before - available(), "amount.managed.untouched.%d", turn);
        GPU(gpu_set((void *)taken.at, 1, 64 << 20));
        GPU(gpu_sync());
        fact(before - available(), "amount.managed.touched.%d", turn);
        GPU(give(&taken));
        fact(before - available(), "amount.managed.freed.%d", turn);
    }
    static const size_t sizes[] = {1 << 20, 16 << 20, 100 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        before = available();
        GPU(take(&taken, "array", sizes[i]));
        fact(before - available(), "amount.array.%zu", sizes[i]);
        GPU(give(&taken));
    }
    static struct taken many[SMALL];
    before = available();
    for (int i = 0; i < SMALL; i++)
        GPU(take(&many[i], "array", 16 << 10));
    fact((before - available()) / SMALL, "amount.array.each.%d", 16 << 10);
    for (int i = 0; i < SMALL; i++)
        GPU(give(&many[i]));
}

static void graphs(void) {
    struct taken taken;
    long long before = available();
    GPU(take(&taken, "graph", 64 << 20));
    GPU(gpu_sync());
    fact(graph_bytes(), "amount.graph.reserved.launched");
    fact(before - available(), "amount.graph.takes");
    GPU(give(&taken));
    fact(graph_bytes(), "amount.graph.reserved.destroyed");
    GPU(trim());
    fact(graph_bytes(), "amount.graph.reserved.trimmed");
}

/* Where memory can be created, by the number of the kind of place. */
static void places(void) {
    for (int kind = 0; kind < KINDS_OF_PLACES; kind++) {
        struct properties there = {.kind = 1, .location = {kind, 0}};
        void *handle;
        long long before = available();
        int code = CALL("cuMemCreate", (void **, size_t, const void *, address), &handle,
                        (size_t)64 << 20, &there, 0);
        fact(code, "create.place.%d", kind);
        if (code)
            continue;
        fact((before - available()) >> 20, "create.place.%d.mib_of_the_device", kind);
        GPU(CALL("cuMemRelease", (void *), handle));
    }
}

/* Takes all that there is, in ever smaller pieces. */
static int take_all(void **blocks) {
    int count = 0;
    for (size_t size = (size_t)64 << 30; size >= 2 << 20 && count < PIECES;) {
        if (gpu_malloc(&blocks[count], size))
            size /= 2;
        else
            count++;
    }
    gpu_last_error();
    return count;
}

static void full(void) {
    static void *blocks[PIECES];
    static const char *const asked[] = {"pool", "virtual", "array", "graph"};
    GPU(gpu_stream_create(&ordered));
    uint64_t begin = now_ns();
    int count = take_all(blocks);
    fact((long long)(now_ns() - begin), "cost.full.taking_all");
    fact(available(), "amount.full.left");
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct taken taken;
        fact(take(&taken, asked[i], 64 << 20), "full.%s", asked[i]);
        gpu_last_error();
    }
    gpu_stream stream;
    void *context = NULL, *host;
    int code = CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 0, 0);
    fact(code, "full.context");
    if (!code)
        CALL("cuCtxDestroy_v2", (void *), context);
    code = gpu_stream_create(&stream);
    fact(code, "full.stream");
    if (!code)
        GPU(gpu_stream_destroy(stream));
    code = gpu_malloc_host(&host, 1 << 20);
    fact(code, "full.page_locked");
    if (!code)
        GPU(gpu_free_host(host));
    void *module = NULL;
    code = CALL("cuModuleLoadData", (void **, const void *), &module, gpu_kernels);
    fact(code, "full.module");
    if (!code)
        GPU(CALL("cuModuleUnload", (void *), module));
    fact(gpu_spin(NULL, 1000), "full.launch");
    fact(gpu_sync(), "full.sync");
    gpu_last_error();
    while (count--)
        GPU(gpu_free(blocks[count]));
    struct taken taken;
    fact(take(&taken, "pool", 256 << 20), "full.pool.afterwards");
    GPU(give(&taken));
    GPU(gpu_sync());
    GPU(gpu_stream_destroy(ordered));
    ordered = NULL;
}

/* The time of many calls, for each: a clock that is read around one is part of it. */
#define EACH_OF(statement)                                                     \
    ({                                                                         \
        uint64_t samples[9];                                                   \
        for (int turn = 0; turn < 9; turn++) {                                 \
            uint64_t begin = now_ns();                                         \
            for (int i = 0; i < OFTEN; i++)                                    \
                GPU(statement);                                                \
            samples[turn] = (now_ns() - begin) / OFTEN;                        \
        }                                                                      \
        (long long)median(samples, 9);                                         \
    })

static void questions(void) {
    void *context;
    int device;
    fact(EACH_OF(CALL("cuCtxGetCurrent", (void **), &context)), "cost.many.ctx_get_current");
    fact(EACH_OF(CALL("cuCtxGetDevice", (int *), &device)), "cost.many.ctx_get_device");
    fact(EACH_OF(gpu_get_device(&device)), "cost.many.get_device");
    fact(EACH_OF(gpu_last_error()), "cost.many.last_error");
}

int main(void) {
    GPU(gpu_set_device(0));
    load_kernels();
    questions();
    pools();
    beside();
    others();
    graphs();
    places();
    full();
    return 0;
}
