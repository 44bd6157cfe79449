/*
 * Ends beside which something of the C API is under way: each word is a case,
 * and prints a line. Threads are held where the simulated driver's calls begin.
 *
 *   api_ends streams|reset|mark|queue|primary|limit|lanes|green|broken|capturing|unseen
 *
 * `streams`, `reset`: streams of a context that ends, or is reset, are told to
 * use a block of another one's.
 * `mark`: a stream that uses a block is destroyed while the block is freed.
 * `queue`: a context ends whose block is to be freed in the background; another
 * one's block then has the address.
 * `primary`: a thread asks for memory of a device whose primary context is
 * being released.
 * `limit`: it is changed while a device is seen for the first time.
 * `lanes`: threads make, use and destroy streams for a while; others are busy.
 * `unseen`: a context that has never asked for memory uses a block.
 * `broken`: an error ends the work of another context, which says so at its first
 * synchronisation.
 * `capturing`: streams of a context that an error ends capture, and one of another does.
 * `green`: a stream of a green context uses a block; the context ends.
 */
#include "gpu.h"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "api.h"
#include "find.h"

enum { SIZE = 300 * 1000, WORDS = SIZE / 4, LONG = 20 * 1000 * 1000, MIB = 1 << 20 };

static int (*create)(void **, unsigned, int), (*destroy)(void *), (*set)(void *);
static sem_t begun, may_go_on;

/* The first call of this name by the thread that sets it is held. */
static _Thread_local const char *held_call;
/* So long, or until the semaphore says so. */
static useconds_t held_us;

static void hold(const char *name) {
    if (!held_call || strcmp(name, held_call))
        return;
    held_call = NULL;
    sem_post(&begun);
    if (held_us)
        usleep(held_us);
    else
        sem_wait(&may_go_on);
}

static void streams(void) {
    gpu_stream stream, own;
    void *context;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    for (int is_freed = 0; is_freed < 2; is_freed++) {
        void *memory = api_get(SIZE, stream);
        GPU(create(&context, 0, 0));
        GPU(gpu_stream_create(&own));
        API(api.free(api_get(SIZE, own)));
        GPU(gpu_fill(own, memory, 1, WORDS, LONG));
        API(api_record(memory, own));
        API(api_record(memory, NULL));
        if (is_freed)
            API(api.free(memory));
        GPU(destroy(context));
        GPU(gpu_set_device(0));
        if (!is_freed)
            API(api.free(memory));
        void *again = api_get(SIZE, stream);
        printf("%s, its own block at once: %d\n", is_freed ? "freed before" : "after",
               again == memory);
        API(api.free(again));
    }
}

static void reset(void) {
    gpu_stream stream;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    void *memory = api_get(SIZE, stream), *there;
    GPU(gpu_set_device(1));
    GPU(gpu_malloc(&there, SIZE));
    API(api_record(memory, NULL));
    GPU(gpu_reset());
    GPU(gpu_set_device(0));
    API(api.free(memory));
    void *again = api_get(SIZE, stream);
    printf("its own block at once: %d\n", again == memory);
    for (int i = 0; i < 2; i++) {
        GPU(gpu_set_device(1));
        GPU(gpu_malloc(&there, SIZE));
        GPU(gpu_fill(NULL, there, 1, WORDS, 0));
        GPU(gpu_sync());
        GPU(gpu_reset());
        EXPECT(VRAMALLOC_NOT_OURS, api.free(there));
    }
}

static void *free_held(void *memory) {
    GPU(gpu_set_device(0));
    held_call = "cuEventRecord";
    API(api.free(memory));
    return NULL;
}

static void mark(void) {
    gpu_stream stream, other;
    pthread_t thread;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_stream_create(&other));
    void *memory = api_get(SIZE, stream);
    GPU(gpu_fill(other, memory, 1, WORDS, LONG));
    API(api_record(memory, other));
    held_us = 200 * 1000;
    pthread_create(&thread, NULL, free_held, memory);
    sem_wait(&begun);
    GPU(gpu_stream_destroy(other));
    pthread_join(thread, NULL);
    void *again = api_get(SIZE, stream);
    GPU(gpu_fill(stream, again, 2, WORDS, 0));
    printf("while the other uses it: %d", again == memory);
    GPU(gpu_sync());
    API(api.free(again));
    again = api_get(SIZE, stream);
    void *more = api_get(SIZE, stream);
    printf(", after that: %d\n", again == memory || more == memory);
}

static pthread_t own_thread;

static void hold_background(const char *name) {
    if (pthread_equal(pthread_self(), own_thread))
        return;
    held_call = "cuMemFree_v2";
    hold(name);
}

static void queue(void) {
    enum { MOST = 4096 };
    void *first, *second, *block, *large;
    vramalloc_scope scope;
    void (*watch)(void (*)(const char *));
    *(void **)&watch = find("sim_cuda_watch");
    GPU(gpu_set_device(0));
    GPU(create(&first, 0, 0));
    GPU(create(&second, 0, 0));
    API(api.scope_begin(&scope));
    GPU(set(first));
    API(api.malloc(SIZE, 0, &block));
    GPU(set(second));
    API(api.malloc(64 * MIB, 0, &large));
    own_thread = pthread_self();
    watch(hold_background);
    API(api.scope_end(scope));
    /* The youngest goes first. */
    sem_wait(&begun);
    watch(NULL);
    GPU(destroy(first));
    GPU(set(second));
    void *taken = NULL;
    int count = 0;
    while (taken != block && count++ < MOST)
        API(api.malloc(SIZE, 0, &taken));
    sem_post(&may_go_on);
    API(api.empty_cache(0, NULL));
    printf("the address came back: %d, its block is there: %d\n", taken == block,
           api.free(taken) == VRAMALLOC_SUCCESS);
}

static _Thread_local int releases;

/* Between the end of the context and our question whether it has ended. */
static void hold_release(const char *name) {
    if (releases == 1 && !strncmp(name, "cuDevicePrimaryCtxRelease", 25))
        releases = 2;
    if (releases == 2 && !strcmp(name, "cuDevicePrimaryCtxGetState")) {
        releases = 0;
        sem_post(&begun);
        usleep(200 * 1000);
    }
}

static void *ask_meanwhile(void *answer) {
    sem_wait(&begun);
    API(api.malloc(SIZE, 1, answer));
    return NULL;
}

static void primary(void) {
    int (*retain)(void **, int), (*release)(int);
    void (*watch)(void (*)(const char *));
    void *context, *memory;
    pthread_t thread;
    *(void **)&retain = find("cuDevicePrimaryCtxRetain");
    *(void **)&release = find("cuDevicePrimaryCtxRelease_v2");
    *(void **)&watch = find("sim_cuda_watch");
    GPU(gpu_set_device(0));
    GPU(retain(&context, 1));
    GPU(set(context));
    API(api.malloc(SIZE, 1, &memory));
    API(api.free(memory));
    GPU(set(NULL));
    watch(hold_release);
    pthread_create(&thread, NULL, ask_meanwhile, &memory);
    releases = 1;
    GPU(release(1));
    pthread_join(thread, NULL);
    watch(NULL);
    GPU(retain(&context, 1));
    GPU(set(context));
    GPU(gpu_fill(NULL, memory, 1, WORDS, 0));
    GPU(gpu_sync());
    API(api.free(memory));
    printf("it has memory of the new context\n");
}

static void *see_the_device(void *unused) {
    held_call = "cuDeviceGetName";
    GPU(gpu_set_device(0));
    void *memory;
    API(api.malloc(SIZE, 0, &memory));
    return unused;
}

static void limit(void) {
    void *memory, *more;
    pthread_t thread;
    int (*init)(unsigned);
    *(void **)&init = find("cuInit");
    GPU(init(0));
    pthread_create(&thread, NULL, see_the_device, NULL);
    sem_wait(&begun);
    API(api.ctl("option.limit", "64M", NULL, 0, NULL));
    sem_post(&may_go_on);
    pthread_join(thread, NULL);
    GPU(gpu_set_device(0));
    printf("within the limit: %d", api.malloc(32 * MIB, 0, &memory));
    printf(", beyond it: %d\n", api.malloc(64 * MIB, 0, &more));
}

enum { USERS = 3, ROUNDS = 1500, BLOCKS = 4 };

static void *use_streams(void *number) {
    unsigned seed = (unsigned)(size_t)number * 77 + 5;
    void *blocks[BLOCKS];
    gpu_stream stream;
    GPU(gpu_set_device(0));
    for (int round = 0; round < ROUNDS; round++) {
        GPU(gpu_stream_create(&stream));
        for (int i = 0; i < BLOCKS; i++) {
            seed = seed * 1664525 + 1013904223;
            blocks[i] = api_get(4096 + (seed >> 14), stream);
            GPU(gpu_fill(stream, blocks[i], i, 1024, (seed >> 12) % 200000));
        }
        for (int i = 0; i < BLOCKS; i++)
            API(api.free(blocks[i]));
        GPU(gpu_stream_destroy(stream));
    }
    return NULL;
}

static void lanes(void) {
    pthread_t threads[USERS];
    for (size_t i = 0; i < USERS; i++)
        pthread_create(&threads[i], NULL, use_streams, (void *)i);
    for (int i = 0; i < USERS; i++)
        pthread_join(threads[i], NULL);
    puts("all streams are gone");
}

static void green(void) {
    int (*resource_of)(int, void *, int), (*describe)(void **, void *, unsigned);
    int (*make)(void **, void *, int, unsigned), (*end)(void *);
    int (*stream_in)(gpu_stream *, void *, unsigned, int);
    unsigned char resource[256] = {0};
    void *description, *part;
    gpu_stream stream, there;
    *(void **)&resource_of = find("cuDeviceGetDevResource");
    *(void **)&describe = find("cuDevResourceGenerateDesc");
    *(void **)&make = find("cuGreenCtxCreate");
    *(void **)&end = find("cuGreenCtxDestroy");
    *(void **)&stream_in = find("cuGreenCtxStreamCreate");
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(resource_of(0, resource, 1));
    GPU(describe(&description, resource, 1));
    GPU(make(&part, description, 0, 1));
    GPU(stream_in(&there, part, 1, 0));
    void *memory = api_get(SIZE, stream);
    API(api_record(memory, there));
    API(api.free(memory));
    GPU(end(part));
    void *again = api_get(SIZE, stream);
    printf("its own block at once: %d\n", again == memory);
}

static void broken(void) {
    enum { MOST = 4096, PIECE = 256 << 10 };
    static void *blocks[MOST];
    int (*synchronize)(void), first = 0, again = 0;
    void *there;
    *(void **)&synchronize = find("cuCtxSynchronize");
    GPU(gpu_set_device(1));
    GPU(gpu_malloc(&there, SIZE));
    GPU(gpu_set_device(0));
    while (first < MOST && !gpu_malloc(&blocks[first], PIECE))
        first++;
    /* What is freed meanwhile waits for that, too. */
    GPU(gpu_set_device(1));
    GPU(gpu_fill(NULL, there, 1, WORDS, 10 * (uint64_t)LONG));
    GPU(gpu_set_device(0));
    for (int i = 0; i < first; i += 2)
        GPU(gpu_free(blocks[i]));
    GPU(gpu_set_device(1));
    printf("the other context: %d", synchronize());
    GPU(gpu_set_device(0));
    while (2 * again < first && !gpu_malloc(&blocks[2 * again], PIECE))
        again++;
    printf(", as many again: %d\n", 2 * again >= first);
}

/* A call that fails because of a context that an error has ended says nothing of captures in
 * another, and ends those in that one. */
static void capturing(void) {
    enum { RELAXED = 2 };
    int (*ask)(int *), (*end)(gpu_stream, void **), config;
    void *broken, *context, *graph;
    gpu_stream gone, ended, stream;
    *(void **)&ask = find("cuCtxGetCacheConfig");
    *(void **)&end = find("cuStreamEndCapture");
    GPU(gpu_set_device(0));
    GPU(create(&broken, 0, 0));
    GPU(gpu_stream_create(&gone));
    GPU(gpu_stream_create(&ended));
    GPU(gpu_capture_begin(gone, RELAXED));
    GPU(gpu_capture_begin(ended, RELAXED));
    GPU(create(&context, 0, 0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_capture_begin(stream, RELAXED));
    GPU(set(broken));
    printf("broken: %d", ask(&config));
    printf(", its streams: %d %d", gpu_stream_destroy(gone), end(ended, &graph));
    printf(", the other one: %d", end(stream, &graph));
    GPU(set(context));
    void *block;
    for (int i = 0; i < 200; i++) {
        GPU(gpu_malloc(&block, SIZE));
        GPU(gpu_free(block));
    }
    printf(", and there: %d\n", end(stream, &graph));
    /* Where a capture is not over, none of it is had again. */
    for (int i = 0; i < 2000; i++) {
        GPU(gpu_malloc(&block, SIZE));
        GPU(gpu_free(block));
    }
}

static void unseen(void) {
    gpu_stream stream, own;
    void *context;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    void *memory = api_get(SIZE, stream);
    GPU(create(&context, 0, 0));
    GPU(gpu_stream_create(&own));
    GPU(gpu_set_device(0));
    API(api_record(memory, own));
    API(api.free(memory));
    void *again = api_get(SIZE, stream);
    printf("its own block at once: %d\n", again == memory);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"streams", streams}, {"reset", reset}, {"mark", mark},     {"queue", queue},
    {"primary", primary}, {"limit", limit}, {"lanes", lanes},   {"green", green},
    {"broken", broken},   {"unseen", unseen},   {"capturing", capturing},
};

int main(int count, char **arguments) {
    void (*watch)(void (*)(const char *));
    *(void **)&watch = find("sim_cuda_watch");
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    *(void **)&set = find("cuCtxSetCurrent");
    sem_init(&begun, 0, 0);
    sem_init(&may_go_on, 0, 0);
    api_load();
    watch(hold);
    for (size_t i = 0; count > 2 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(arguments[2], cases[i].name)) {
            cases[i].run();
            return 0;
        }
    return 2;
}
