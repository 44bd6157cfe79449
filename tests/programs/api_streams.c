/*
 * Memory of streams by the C API: one that gets its own back at once, others
 * that use a block of it, captures, memory that runs short, streams and
 * contexts that end, PyTorch's prototypes.
 *
 *   api_streams front|late [forget|apart|gone]
 *
 * `forget`: a use on another stream is not told, which breaks the rule.
 * `apart`: a context ends whose freed block a stream of device 1 uses, which is
 * busy for an hour; nothing else.
 * `gone`: a stream of device 1 is destroyed while a context of device 0 ends,
 * which the driver holds up until that is done; nothing else.
 */
#include "gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "find.h"

enum { SIZE = 300 * 1000, WORDS = SIZE / 4, LONG = 20 * 1000 * 1000, THREADS = 4 };

static const uint64_t HOUR = 3600ull * 1000 * 1000 * 1000;

static int front, forget;

/* What is not allowed is refused. */
static void refusals(gpu_stream stream) {
    void *memory = &memory, *plain;
    vramalloc_stream of = (vramalloc_stream)stream;
    EXPECT(VRAMALLOC_INVALID_ARGUMENT,
           api.malloc_on_stream(SIZE, VRAMALLOC_PINNED, of, &memory));
    EXPECT(VRAMALLOC_INVALID_ARGUMENT, api.malloc_on_stream(SIZE, 0, of, NULL));
    API(api.malloc_on_stream(0, 0, of, &memory));
    if (memory)
        exit(1);
    EXPECT(101, api.malloc_on_stream(SIZE, 7, of, &memory));
    EXPECT(VRAMALLOC_NOT_OURS, api_record(&plain, stream));
    EXPECT(VRAMALLOC_INVALID_ARGUMENT, api.release_captures(VRAMALLOC_PINNED, NULL));
    API(api.malloc(SIZE, 0, &plain));
    API(api_record(plain, stream));
    API(api.free(plain));
    memory = api_get(SIZE, stream);
    API(api_record(memory, stream));
    API(api.free(memory));
    EXPECT(VRAMALLOC_NOT_OURS, api_record(memory, stream));
    EXPECT(VRAMALLOC_NOT_OURS, api.free(memory));
}

static void one_stream(gpu_stream stream, gpu_stream other) {
    void *first = api_get(SIZE, stream);
    GPU(gpu_fill(stream, first, 1, WORDS, LONG));
    API(api.free(first));
    void *theirs = api_get(SIZE, other);
    void *second = api_get(SIZE, stream);
    GPU(gpu_fill(stream, second, 2, WORDS, 0));
    GPU(gpu_fill(other, theirs, 3, WORDS, 0));
    printf("its own block at once: %d, the other stream too: %d\n", first == second,
           first == theirs);
    API(api.free(second));
    API(api.free(theirs));
    GPU(gpu_sync());
}

static void two_streams(gpu_stream stream, gpu_stream other) {
    void *first = api_get(SIZE, stream);
    GPU(gpu_fill(stream, first, 1, WORDS, 0));
    GPU(gpu_stream_sync(stream));
    GPU(gpu_fill(other, first, 2, WORDS, LONG));
    if (!forget)
        API(api_record(first, other));
    API(api.free(first));
    EXPECT(VRAMALLOC_NOT_OURS, api.free(first));
    EXPECT(VRAMALLOC_NOT_OURS, api_record(first, other));
    void *second = api_get(SIZE, stream);
    GPU(gpu_fill(stream, second, 3, WORDS, 0));
    printf("while the other uses it: %d", first == second);
    GPU(gpu_sync());
    void *third = api_get(SIZE, stream);
    printf(", after that: %d\n", first == third);
    API(api.free(second));
    API(api.free(third));
}

/* CUDA's own free, which names the other stream: its work is before the free. */
static void in_the_order_of_another(gpu_stream stream, gpu_stream other) {
    void *first = api_get(SIZE, stream);
    GPU(gpu_fill(other, first, 2, WORDS, LONG));
    GPU(gpu_free_async(first, other));
    void *second = api_get(SIZE, stream);
    GPU(gpu_fill(stream, second, 3, WORDS, 0));
    printf("freed in the other's order, at once: %d", first == second);
    GPU(gpu_free_async(second, stream));
    void *third = api_get(SIZE, stream);
    printf(", in its own: %d\n", second == third);
    API(api.free(third));
    GPU(gpu_sync());
}

/* The same by the twin of that free, whose stream 0 is the thread's own. */
static void in_the_order_of_the_thread(gpu_stream stream) {
    int (*give)(void *, gpu_stream);
    *(void **)&give = find("cuMemFreeAsync_ptsz");
    void *first = api_get(SIZE, stream);
    GPU(gpu_fill(GPU_THREAD_STREAM, first, 2, WORDS, LONG));
    GPU(give(first, NULL));
    void *second = api_get(SIZE, stream);
    GPU(gpu_fill(stream, second, 3, WORDS, 0));
    void *own = api_get(SIZE, GPU_THREAD_STREAM);
    GPU(gpu_fill(GPU_THREAD_STREAM, own, 2, WORDS, LONG));
    GPU(give(own, NULL));
    void *again = api_get(SIZE, GPU_THREAD_STREAM);
    printf("freed in the thread's order, at once: %d, in its own: %d\n",
           first == second, own == again);
    API(api.free(second));
    API(api.free(again));
    GPU(gpu_sync());
}

/* A stream that uses a block ends before the block is freed, and one that a
 * block belongs to. */
static void streams_that_end(gpu_stream stream) {
    gpu_stream passing;
    GPU(gpu_stream_create(&passing));
    void *used = api_get(SIZE, stream), *own = api_get(SIZE, passing);
    GPU(gpu_fill(passing, used, 1, WORDS, LONG));
    GPU(gpu_fill(passing, own, 1, WORDS, LONG));
    API(api_record(used, passing));
    void *freed = api_get(SIZE, passing);
    GPU(gpu_fill(passing, freed, 1, WORDS, LONG));
    API(api.free(freed));
    GPU(gpu_stream_destroy(passing));
    API(api.free(used));
    API(api.free(own));
    void *again = api_get(SIZE, stream);
    GPU(gpu_fill(stream, again, 2, WORDS, 0));
    gpu_stream next;
    GPU(gpu_stream_create(&next));
    void *theirs = api_get(SIZE, next);
    GPU(gpu_fill(next, theirs, 2, WORDS, 0));
    printf("of work that outlives its stream: %d %d\n", again == used,
           theirs == own || theirs == freed);
    GPU(gpu_sync());
    GPU(gpu_stream_destroy(next));
    API(api.free(again));
    API(api.free(theirs));
}

static uint32_t word(const void *memory) {
    uint32_t word = 0;
    GPU(gpu_copy_out(&word, memory, sizeof word));
    return word;
}

/* What is allocated in a capture is the graph's until it is gone. */
static void a_graph(gpu_stream stream) {
    gpu_graph graph;
    void *executable, *kept = api_get(SIZE, stream), *plain, *of_legacy;
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_GLOBAL));
    API(api_record(kept, stream));
    API(api.malloc(SIZE, 0, &plain));
    API(api.free(plain));
    of_legacy = api_get(SIZE, NULL);
    API(api.free(of_legacy));
    void *first = api_get(SIZE, stream);
    GPU(gpu_fill(stream, first, 1, WORDS, 1000));
    API(api.free(first));
    void *second = api_get(SIZE, stream);
    GPU(gpu_fill(stream, second, 2, WORDS, 1000));
    API(api_record(second, stream));
    if (front)
        GPU(gpu_free_async(second, stream));
    else
        API(api.free(second));
    API(api.free(kept));
    GPU(gpu_capture_end(stream, &graph));
    GPU(gpu_graph_prepare(&executable, graph));
    void *outside = api_get(SIZE, stream);
    GPU(gpu_fill(stream, outside, 7, WORDS, 1000));
    API(api.empty_cache(0, NULL));
    GPU(gpu_graph_launch(executable, stream));
    GPU(gpu_stream_sync(stream));
    printf("in a capture at once: %d, outside of it: %d, kept: %d\n", first == second,
           outside == first, word(outside) == 7);
    GPU(gpu_graph_destroy(executable));
    uint64_t released = 0;
    API(api.release_captures(VRAMALLOC_CURRENT_DEVICE, &released));
    printf("released with its graph: %s\n", released ? "some" : "none");
    API(api.free(outside));
}

/* Nearly all of the device, for one after the other. */
static void short_of_memory(gpu_stream stream, gpu_stream other) {
    size_t available, total, again;
    API(api.empty_cache(0, NULL));
    GPU(gpu_mem_info(&available, &total));
    size_t most = available / 4 * 3;
    void *memory = api_get(most, stream), *none;
    GPU(gpu_fill(stream, memory, 1, WORDS, LONG));
    API(api.free(memory));
    GPU(gpu_mem_info(&again, &total));
    printf("told as free: %d\n", again + (4 << 20) >= available);
    memory = api_get(most, other);
    GPU(gpu_fill(other, memory, 2, WORDS, LONG));
    API(api.free(memory));
    API(api.malloc(most, 0, &memory));
    GPU(gpu_fill(stream, memory, 3, WORDS, 0));
    API(api.free(memory));
    memory = api_get(most, stream);
    EXPECT(GPU_OUT_OF_MEMORY,
           api.malloc_on_stream(most, 0, (vramalloc_stream)other, &none));
    API(api.free(memory));
    GPU(gpu_sync());
}

struct lot {
    gpu_stream own, other;
    uint32_t seed;
};

/* Takes and frees blocks of its own stream, which the other one uses now and
 * then; each holds its own number while it is held. */
static void *crew(void *argument) {
    struct lot *lot = argument;
    void *held[8] = {0};
    GPU(gpu_set_device(0));
    for (int i = 0; i < 300; i++) {
        lot->seed = lot->seed * 1664525 + 1013904223;
        int at = lot->seed >> 29;
        if (held[at]) {
            if (lot->seed & 0x10000) {
                API(api_record(held[at], lot->other));
                gpu_event done;
                GPU(gpu_event_create(&done));
                GPU(gpu_event_record(done, lot->own));
                GPU(gpu_stream_wait(lot->other, done));
                GPU(gpu_fill(lot->other, held[at], 9, 64, 20000));
                GPU(gpu_event_destroy(done));
            }
            API(api.free(held[at]));
        }
        held[at] = api_get(1000 + (lot->seed >> 12) % 400000, lot->own);
        GPU(gpu_fill(lot->own, held[at], i, 64, 10000));
    }
    for (int at = 0; at < 8; at++)
        if (held[at])
            API(api.free(held[at]));
    return NULL;
}

static void threads(void) {
    struct lot lots[THREADS];
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++)
        GPU(gpu_stream_create(&lots[i].own));
    for (int i = 0; i < THREADS; i++) {
        lots[i].other = lots[(i + 1) % THREADS].own;
        lots[i].seed = 77 + i;
        if (pthread_create(&all[i], NULL, crew, &lots[i]))
            exit(1);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
    GPU(gpu_sync());
    for (int i = 0; i < THREADS; i++)
        GPU(gpu_stream_destroy(lots[i].own));
    printf("threads are done\n");
}

static void a_child(gpu_stream stream) {
    void *memory = api_get(SIZE, stream), *more;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        EXPECT(VRAMALLOC_FORKED,
               api.malloc_on_stream(SIZE, 0, (vramalloc_stream)stream, &more));
        EXPECT(VRAMALLOC_FORKED, api_record(memory, stream));
        EXPECT(VRAMALLOC_FORKED, api.free(memory));
        EXPECT(VRAMALLOC_FORKED, api.release_captures(0, NULL));
        _exit(api.torch_malloc(SIZE, 0, (vramalloc_stream)stream) != NULL);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status)
        exit(1);
    API(api.free(memory));
}

/* As PyTorch calls it, before it was given the function for record_stream and
 * after. No C++ is here that could take an exception: null says it all. */
static void pytorch(gpu_stream stream) {
    vramalloc_stream of = (vramalloc_stream)stream;
    for (int told = 0; told < 2; told++) {
        void *first = api.torch_malloc(SIZE, 0, of);
        GPU(gpu_fill(stream, first, 1, WORDS, LONG));
        api.torch_free(first, SIZE, 0, of);
        void *second = api.torch_malloc(SIZE, 0, of);
        GPU(gpu_fill(stream, second, 1, WORDS, 0));
        /* Where nothing is pooled CUDA's own free has waited. */
        printf("told of streams: %d, its own block at once: %d\n", told,
               (front || told) && first == second);
        api.torch_free(second, SIZE, 0, of);
        if (!told && !api.torch_hook("record_stream"))
            exit(1);
    }
    api.torch_free(NULL, 0, 0, of);
    if (api.torch_malloc(0, 0, of) || api.torch_malloc((ssize_t)1 << 46, 0, of) ||
        api.torch_hook("nothing") || api.torch_hook(NULL))
        exit(1);
    void (*empty)(void);
    *(void **)&empty = api.torch_hook("empty_cache");
    empty();
}

/* A context of the program's own goes with its lanes, round after round: its
 * address may come back, its memory not. */
static void after_a_context(void) {
    int (*create)(void **, unsigned, int), (*destroy)(void *);
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    int right = 0;
    for (uint32_t round = 0; round < 3; round++) {
        void *context;
        gpu_stream stream, other;
        GPU(create(&context, 0, 0));
        GPU(gpu_stream_create(&stream));
        GPU(gpu_stream_create(&other));
        void *memory = api_get(SIZE, stream), *freed = api_get(SIZE, stream);
        GPU(gpu_fill(other, freed, round, WORDS, LONG));
        GPU(gpu_fill(stream, memory, round, WORDS, 0));
        API(api_record(freed, other));
        API(api.free(freed));
        GPU(gpu_stream_sync(stream));
        right += word(memory) == round;
        GPU(destroy(context));
        EXPECT(VRAMALLOC_NOT_OURS, api.free(memory));
        EXPECT(VRAMALLOC_NOT_OURS, api.free(freed));
        GPU(gpu_set_device(0));
    }
    printf("contexts that ended: %d\n", right);
}

static void after_a_reset(gpu_stream stream) {
    void *memory = api_get(SIZE, stream), *freed = api_get(SIZE, stream);
    GPU(gpu_fill(stream, freed, 1, WORDS, LONG));
    API(api_record(freed, NULL));
    API(api.free(freed));
    GPU(gpu_reset());
    EXPECT(VRAMALLOC_NOT_OURS, api.free(memory));
    EXPECT(VRAMALLOC_NOT_OURS, api_record(memory, NULL));
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    memory = api_get(SIZE, stream);
    GPU(gpu_fill(stream, memory, 5, WORDS, 0));
    GPU(gpu_sync());
    printf("after a reset: %d\n", word(memory) == 5);
    API(api.free(memory));
    GPU(gpu_stream_destroy(stream));
}

static void an_end_beside_a_busy_device(void) {
    int (*create)(void **, unsigned, int), (*destroy)(void *);
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    void *context;
    gpu_stream stream, far;
    gpu_event end;
    GPU(gpu_set_device(1));
    GPU(gpu_stream_create(&far));
    GPU(gpu_event_create(&end));
    GPU(gpu_spin(far, HOUR));
    GPU(gpu_event_record(end, far));
    GPU(create(&context, 0, 0));
    GPU(gpu_stream_create(&stream));
    void *memory = api_get(SIZE, stream), *plain, *beside;
    GPU(gpu_malloc(&plain, 1000));
    GPU(gpu_malloc(&beside, 1000));
    API(api_record(memory, far));
    API(api.free(memory));
    GPU(gpu_free(plain));
    time_t start = time(NULL);
    GPU(destroy(context));
    printf("it ended within 8 s: %d\n", time(NULL) - start < 8);
    GPU(gpu_set_device(1));
    printf("device 1 was still at work: %d\n",
           gpu_event_query(end) == GPU_NOT_READY);
}

static pthread_mutex_t destroying = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int destroys;
static atomic_int asked;

static void hold_the_end(const char *name) {
    if (destroys && !strcmp(name, "cuStreamGetId"))
        asked = 1;
    if (strcmp(name, "cuCtxDestroy_v2"))
        return;
    pthread_mutex_lock(&destroying);
    pthread_mutex_unlock(&destroying);
}

static void *end_meanwhile(void *context) {
    int (*destroy)(void *);
    *(void **)&destroy = find("cuCtxDestroy_v2");
    while (!asked)
        usleep(1000);
    GPU(destroy(context));
    return NULL;
}

static void a_stream_goes_beside_an_end(void) {
    int (*create)(void **, unsigned, int);
    void (*watch)(void (*)(const char *));
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&watch = find("sim_cuda_watch");
    void *context, *own;
    gpu_stream stream;
    pthread_t thread;
    GPU(gpu_set_device(0));
    GPU(create(&context, 0, 0));
    GPU(gpu_stream_create(&stream));
    API(api.free(api_get(SIZE, stream)));
    GPU(create(&own, 0, 1));
    GPU(gpu_stream_create(&stream));
    API(api.free(api_get(SIZE, stream)));
    watch(hold_the_end);
    pthread_mutex_lock(&destroying);
    pthread_create(&thread, NULL, end_meanwhile, context);
    destroys = 1;
    GPU(gpu_stream_destroy(stream));
    asked = 1;
    pthread_mutex_unlock(&destroying);
    pthread_join(thread, NULL);
    printf("the stream is gone, and so is the context\n");
}

int main(int count, char **arguments) {
    front = count > 1 && !strcmp(arguments[1], "front");
    forget = count > 2 && !strcmp(arguments[2], "forget");
    gpu_stream stream, other;
    api_load();
    if (count > 2 && !strcmp(arguments[2], "apart")) {
        an_end_beside_a_busy_device();
        return 0;
    }
    if (count > 2 && !strcmp(arguments[2], "gone")) {
        a_stream_goes_beside_an_end();
        return 0;
    }
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_stream_create(&other));
    refusals(stream);
    one_stream(stream, other);
    two_streams(stream, other);
    if (front) {
        in_the_order_of_another(stream, other);
        in_the_order_of_the_thread(stream);
    }
    if (forget)
        return 0;
    /* Where the library does not stand in front it hears of no end. */
    if (front)
        streams_that_end(stream);
    a_graph(stream);
    threads();
    a_child(stream);
    pytorch(stream);
    short_of_memory(stream, other);
    if (front) {
        after_a_context();
        after_a_reset(stream);
    } else {
        GPU(gpu_stream_destroy(stream));
    }
    return 0;
}
