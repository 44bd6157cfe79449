/*
 * Takes device memory in the ways that there are, step by step, and tells what
 * came of it.
 *
 *   families STEP...
 *
 *   plain:N late:N pool:N virtual:N managed:N array:N graph:N
 *           takes N bytes (K, M, G behind the number) that way; what is late is
 *           given back in the order of a stream; a graph frees what it takes
 *   fill-WAY:N
 *           takes N bytes that way again and again, until that fails
 *   three-WAY:N
 *           three threads take N bytes each that way, at once
 *   beside-WAY:N
 *           another thread takes N bytes that way on a stream of its own, and is
 *           given a tenth of a second to begin
 *   await:CALL
 *           that thread has begun only when it makes its first call of this name
 *           to the simulated driver
 *   hold:CALL
 *           the same, and it is held there
 *   join    lets it go on and waits for it; the code is what it was answered
 *   holes:N takes 15, 1, 15 and 1 MiB from the pool N times, and gives the large
 *           ones back then
 *   share:N
 *           four threads take N bytes from the pool again and again, each on a
 *           stream of its own, and free them behind work; each has four times
 *           that at most; the code says how many requests were refused
 *   device:N
 *           the next steps are for this device
 *   other   another stream is the one that pools serve from then on
 *   after   the same with one that orders with the default stream
 *   nap     sleeps for a tenth of a second
 *   give    gives the last one back that is there
 *   all     gives all of them back
 *   sync    waits for the device
 *   trim    trims the pool and the graphs' memory
 *   info    free and total memory, in KiB, and the device's size
 *   own     what the simulated driver counts by families, in KiB
 *   peak    the most that it counted at once, in KiB
 *   enter   makes a context, in which the next steps are done
 *   leave   destroys it, and forgets what was taken there
 *   part    takes virtual memory from a part of the device from then on
 *   mine    makes a pool, which is the device's from then on
 *   keep:N  has the device's pool keep N bytes that are not used
 *   end     destroys that pool
 *   begin:N begins a capture, globally (0), for the thread (1) or relaxed (2),
 *           on the stream that pools serve from then on
 *   done    ends it
 *   work:N  N nanoseconds of work on a stream
 *   import  exports memory and a pool, and imports both
 *   NAME:V  sets the limit of a context (stack), or makes a stream, or an event
 *
 * Each step prints a line with the first code that was not 0.
 */
#include "families.h"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

enum { MOST = 8192 };

static struct taken taken[MOST];
static int count, entered, captures;
static void *own_pool, *context;

/* Managed memory takes nothing of a device before that touches it. */
static int take_and_touch(struct taken *to) {
    int code = ways[to->way].take(to);
    if (!code && ways[to->way].take == take_managed && !captures)
        GPU(gpu_set((void *)to->at, 0, 1));
    return code;
}

static int take_way(int way, size_t size) {
    struct taken *to = &taken[count];
    *to = (struct taken){.way = way, .size = size};
    int code = take_and_touch(to);
    if (code)
        gpu_last_error();
    count += !code;
    return code;
}

static int fill(const char *step) {
    size_t size = size_of(strchr(step, ':') + 1), all = 0;
    int way = way_of(step, ':'), code = 0;
    while (count < MOST && !(code = take_way(way, size)))
        all += size;
    printf("%zu KiB, ", all >> 10);
    return code;
}

static void *take_there(void *number) {
    GPU(gpu_set_device(0));
    struct taken *to = number;
    if (take_and_touch(to))
        to->size = 0;
    return NULL;
}

static int three(const char *step) {
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    struct taken all[THREADS];
    int refused = 0;
    for (int i = 0; i < THREADS; i++) {
        all[i] = (struct taken){.way = way_of(step, ':'),
                                .size = size_of(strchr(step, ':') + 1)};
        pthread_create(&threads[i], NULL, take_there, &all[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        refused += !all[i].size;
        if (all[i].size)
            taken[count++] = all[i];
    }
    return refused;
}

static pthread_t beside;
static struct taken taken_beside;
static const char *awaited;
static _Thread_local int is_beside;
static sem_t has_begun, may_go_on;

static void begins(const char *name) {
    if (!is_beside || strcmp(name, awaited))
        return;
    is_beside = 0;
    sem_post(&has_begun);
    sem_wait(&may_go_on);
}

static int await(const char *name, int is_held) {
    void (*watch)(void (*)(const char *));
    *(void **)&watch = find("sim_cuda_watch");
    awaited = name;
    watch(begins);
    return sem_init(&has_begun, 0, 0) || sem_init(&may_go_on, 0, !is_held);
}

static void *take_beside(void *unused) {
    (void)unused;
    GPU(gpu_set_device(0));
    is_beside = 1;
    int way = taken_beside.way;
    return (void *)(intptr_t)ways[way].take(&taken_beside);
}

static int begin_beside(const char *step) {
    taken_beside = (struct taken){.way = way_of(step, ':'),
                                  .size = size_of(strchr(step, ':') + 1)};
    int code = pthread_create(&beside, NULL, take_beside, NULL);
    if (awaited)
        sem_wait(&has_begun);
    else
        usleep(100 * 1000);
    return code;
}

static int join(void) {
    void *code;
    if (awaited)
        sem_post(&may_go_on);
    pthread_join(beside, &code);
    return (int)(intptr_t)code;
}

/* Leaves room in pieces of 15 MiB. */
static int make_holes(size_t number) {
    enum { MOST_HOLES = 64 };
    struct taken large[MOST_HOLES];
    size_t holes = 0;
    for (size_t i = 0; i < number && holes + 2 <= MOST_HOLES; i++) {
        for (int part = 0; part < 4; part++) {
            GPU(take_way(way_of("pool", 0), (size_t)(part % 2 ? 1 : 15) << 20));
            if (part % 2 == 0)
                large[holes++] = taken[--count];
        }
    }
    while (holes--)
        GPU(ways[large[holes].way].give(&large[holes]));
    return gpu_sync();
}

static size_t shared_size;
static int refused_shares;

static void *take_shares(void *number) {
    enum { ROUNDS = 2000, HELD = 4, WORK = 100000 };
    unsigned random = (unsigned)(uintptr_t)number;
    void *held[HELD] = {0};
    gpu_stream stream;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    for (int i = 0; i < ROUNDS + HELD; i++) {
        void **at = &held[(i < ROUNDS ? (unsigned)rand_r(&random) : (unsigned)i) % HELD];
        if (*at) {
            GPU(gpu_spin(stream, WORK));
            GPU(gpu_free_async(*at, stream));
            *at = NULL;
        } else if (i < ROUNDS && gpu_malloc_async(at, shared_size, stream)) {
            *at = NULL;
            __atomic_fetch_add(&refused_shares, 1, __ATOMIC_RELAXED);
        }
    }
    GPU(gpu_stream_sync(stream));
    return NULL;
}

static int share(size_t size) {
    enum { SHARES = 4 };
    pthread_t threads[SHARES];
    shared_size = size;
    for (uintptr_t i = 0; i < SHARES; i++)
        pthread_create(&threads[i], NULL, take_shares, (void *)(i + 1));
    for (int i = 0; i < SHARES; i++)
        pthread_join(threads[i], NULL);
    return refused_shares;
}

static int give(void) {
    if (!count)
        return 0;
    struct taken *from = &taken[--count];
    return ways[from->way].give(from);
}

static int give_all(void) {
    int code = 0;
    while (count && !code)
        code = give();
    return code;
}

static int tell_info(void) {
    size_t available = 0, total = 0, size = 0;
    int code = gpu_mem_info(&available, &total);
    if (!code)
        code = device_size(&size);
    printf("free %zu, total %zu, size %zu\n", available >> 10, total >> 10,
           size >> 10);
    return code;
}

static int tell_own(const char *function) {
    uint64_t (*bytes)(const char *, int);
    *(void **)&bytes = find(function);
    for (int way = 0; way < FAMILIES; way++)
        printf("%s %zu, ", ways[way].name, (size_t)bytes(ways[way].name, 0) >> 10);
    printf("all %zu\n", (size_t)bytes(NULL, 0) >> 10);
    return 0;
}

static int enter(void) {
    entered = count;
    return CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 0, 0);
}

static int leave(void) {
    count = entered;
    int code = CALL("cuCtxDestroy_v2", (void *), context);
    return code ? code : gpu_set_device(0);
}

static int make_pool(void) {
    int code = CALL("cuMemPoolCreate", (void **, const void *), &own_pool, &here);
    return code ? code
                : CALL("cuDeviceSetMemPool", (int, void *), 0, own_pool);
}

static int in_part(void) {
    here.location.kind = 6;
    return 0;
}

static int keep(uint64_t bytes) {
    void *pool;
    int code = CALL("cuDeviceGetMemPool", (void **, int), &pool, 0);
    return code ? code : CALL("cuMemPoolSetAttribute", (void *, int, void *), pool, 4, &bytes);
}

static int end_pool(void) {
    return CALL("cuMemPoolDestroy", (void *), own_pool);
}

/* Memory and a pool that the process exports and imports itself. */
static int import(void) {
    struct properties shared = here;
    void *memory, *again, *pool, *imported;
    address at, same;
    char pointer[64];
    int file = 0;
    shared.handles = 1;
    GPU(CALL("cuMemCreate", (void **, size_t, const void *, address), &memory,
             (size_t)2 << 20, &shared, 0));
    GPU(CALL("cuMemExportToShareableHandle", (int *, void *, int, address),
             &file, memory, 1, 0));
    GPU(CALL("cuMemImportFromShareableHandle", (void **, void *, int), &again,
             (void *)(intptr_t)file, 1));
    GPU(CALL("cuMemPoolCreate", (void **, const void *), &pool, &shared));
    GPU(CALL("cuMemAllocFromPoolAsync", (address *, size_t, void *, gpu_stream),
             &at, (size_t)1 << 20, pool, ordered));
    GPU(CALL("cuMemPoolExportToShareableHandle", (int *, void *, int, address),
             &file, pool, 1, 0));
    GPU(CALL("cuMemPoolExportPointer", (void *, address), pointer, at));
    GPU(CALL("cuMemPoolImportFromShareableHandle",
             (void **, void *, int, address), &imported,
             (void *)(intptr_t)file, 1, 0));
    return CALL("cuMemPoolImportPointer", (address *, void *, void *), &same,
                imported, pointer);
}

static int begin(int mode) {
    if (!ordered)
        GPU(gpu_stream_create(&ordered));
    captures = 1;
    return gpu_capture_begin(ordered, mode);
}

static int done(void) {
    gpu_graph graph = NULL;
    captures = 0;
    return gpu_capture_end(ordered, &graph);
}

static int other(const char *step) {
    const char *colon = strchr(step, ':');
    size_t number = colon ? size_of(colon + 1) : 0;
    gpu_stream stream;
    void *event;
    if (!strncmp(step, "fill-", 5))
        return fill(step + 5);
    if (!strncmp(step, "three-", 6))
        return three(step + 6);
    if (!strncmp(step, "beside-", 7))
        return begin_beside(step + 7);
    if (!strncmp(step, "hold:", 5))
        return await(step + 5, 1);
    if (!strncmp(step, "await:", 6))
        return await(step + 6, 0);
    if (!strncmp(step, "holes:", 6))
        return make_holes(number);
    if (!strncmp(step, "share:", 6))
        return share(number);
    if (!strncmp(step, "device:", 7))
        return gpu_set_device((int)number);
    if (!strncmp(step, "begin:", 6))
        return begin((int)number);
    if (!strncmp(step, "work:", 5))
        return gpu_spin(ordered, number);
    if (!strncmp(step, "keep:", 5))
        return keep(number);
    if (!strncmp(step, "stack:", 6))
        return CALL("cuCtxSetLimit", (int, size_t), 0, number);
    if (!strncmp(step, "stream:", 7))
        return CALL("cuStreamCreate", (gpu_stream *, unsigned), &stream, 1);
    if (!strncmp(step, "event:", 6))
        return CALL("cuEventCreate", (void **, unsigned), &event, 2);
    int way = way_of(step, ':');
    if (way >= 0)
        return take_way(way, number);
    fprintf(stderr, "what is %s?\n", step);
    exit(2);
}

static int run(const char *step) {
    return !strcmp(step, "give")    ? give()
           : !strcmp(step, "all")   ? give_all()
           : !strcmp(step, "join")  ? join()
           : !strcmp(step, "other") ? gpu_stream_create(&ordered)
           : !strcmp(step, "after") ? gpu_stream_create_blocking(&ordered)
           : !strcmp(step, "nap")   ? usleep(100 * 1000)
           : !strcmp(step, "sync")  ? gpu_sync()
           : !strcmp(step, "trim")  ? trim()
           : !strcmp(step, "info")  ? tell_info()
           : !strcmp(step, "own")   ? tell_own("sim_cuda_bytes")
           : !strcmp(step, "peak")  ? tell_own("sim_cuda_peak_bytes")
           : !strcmp(step, "enter") ? enter()
           : !strcmp(step, "leave") ? leave()
           : !strcmp(step, "part")  ? in_part()
           : !strcmp(step, "mine")  ? make_pool()
           : !strcmp(step, "end")   ? end_pool()
           : !strcmp(step, "done")  ? done()
           : !strcmp(step, "import") ? import()
                                     : other(step);
}

int main(int argc, char **argv) {
    GPU(gpu_set_device(0));
    GPU(gpu_sync());
    for (int i = 1; i < argc; i++) {
        int code = run(argv[i]);
        printf("%s: %d\n", argv[i], code);
        fflush(stdout);
    }
    return 0;
}
