/*
 * What cuCtxRecordEvent covers: a mark made while work is under way must be
 * reached after it, whatever it runs on, and not much later; and whether work
 * that comes after the mark waits for what came before.
 */
#include "facts.h"
#include "find.h"

#include <pthread.h>

static int (*record_all)(void *, gpu_event);
static void *context;

/* Marks now. Is the mark still open, and is it reached when all is done? */
static void mark_behind(const char *what) {
    gpu_event mark;
    GPU(gpu_event_create(&mark));
    int code = record_all(context, mark);
    fact(code, "mark.code.%s", what);
    fact(gpu_event_query(mark) == GPU_NOT_READY, "mark.covers.%s", what);
    GPU(gpu_sync());
    fact(gpu_event_query(mark) == GPU_SUCCESS, "mark.reached_after.%s", what);
    GPU(gpu_event_destroy(mark));
}

static void kernels(void) {
    for (int sort = 0; sort < STREAM_SORTS; sort++) {
        gpu_stream stream = stream_of(sort);
        GPU(gpu_spin(stream, KERNEL_NS));
        mark_behind(stream_sorts[sort]);
        drop_stream(sort, stream);
    }
}

static void destroyed_stream(int sort) {
    gpu_stream stream = stream_of(sort);
    GPU(gpu_spin(stream, KERNEL_NS));
    drop_stream(sort, stream);
    mark_behind(sort == BLOCKING ? "destroyed_blocking"
                                 : "destroyed_non_blocking");
}

static void copy_to_host(void) {
    const size_t size = (size_t)256 << 20;
    gpu_stream stream;
    void *device, *host;
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&device, size));
    GPU(gpu_malloc_host(&host, size));
    GPU(gpu_spin(stream, KERNEL_NS));
    GPU(gpu_copy_unified(host, device, size, stream));
    mark_behind("copy");
    GPU(gpu_free_host(host));
    GPU(gpu_free(device));
    GPU(gpu_stream_destroy(stream));
}

static void graph(void) {
    gpu_stream stream;
    gpu_graph captured;
    void *executable;
    GPU(gpu_stream_create(&stream));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(gpu_spin(stream, KERNEL_NS));
    GPU(gpu_capture_end(stream, &captured));
    GPU(gpu_graph_prepare(&executable, captured));
    GPU(gpu_graph_launch(executable, stream));
    mark_behind("graph");
    GPU(gpu_graph_destroy(executable));
    GPU(gpu_stream_destroy(stream));
}

static void *launch(void *stream) {
    GPU(gpu_set_device(0));
    GPU(gpu_spin(stream, KERNEL_NS));
    /* The thread's own stream as well. */
    GPU(gpu_spin(GPU_THREAD_STREAM, KERNEL_NS));
    return NULL;
}

static void other_thread(void) {
    pthread_t thread;
    gpu_stream stream;
    GPU(gpu_stream_create(&stream));
    if (pthread_create(&thread, NULL, launch, stream))
        exit(1);
    pthread_join(thread, NULL);
    mark_behind("other_thread");
    GPU(gpu_stream_destroy(stream));
}

/* Work on a second stream, asked for after a mark behind the first one's. */
static void later_work(void) {
    gpu_stream first, second;
    gpu_event mark, after_first, after_second;
    GPU(gpu_stream_create(&first));
    GPU(gpu_stream_create(&second));
    GPU(gpu_event_create(&mark));
    GPU(gpu_event_create(&after_first));
    GPU(gpu_event_create(&after_second));
    GPU(gpu_spin(first, 4 * KERNEL_NS));
    GPU(gpu_event_record(after_first, first));
    GPU(record_all(context, mark));
    GPU(gpu_spin(second, 1000));
    GPU(gpu_event_record(after_second, second));
    GPU(gpu_event_sync(after_second));
    fact(gpu_event_query(after_first) == GPU_SUCCESS, "mark.delays_later_work");
    GPU(gpu_sync());
    GPU(gpu_event_destroy(mark));
    GPU(gpu_event_destroy(after_first));
    GPU(gpu_event_destroy(after_second));
    GPU(gpu_stream_destroy(first));
    GPU(gpu_stream_destroy(second));
}

/* How long after the work the mark is seen to be reached. */
static void delay(void) {
    enum { TURNS = 9 };
    uint64_t samples[TURNS];
    gpu_stream stream;
    gpu_event mark, after;
    GPU(gpu_stream_create(&stream));
    GPU(gpu_event_create(&mark));
    GPU(gpu_event_create(&after));
    for (int turn = 0; turn < TURNS; turn++) {
        GPU(gpu_spin(stream, 1000 * 1000));
        GPU(gpu_event_record(after, stream));
        GPU(record_all(context, mark));
        while (gpu_event_query(after) == GPU_NOT_READY)
            ;
        uint64_t begin = now_ns();
        while (gpu_event_query(mark) == GPU_NOT_READY)
            ;
        samples[turn] = now_ns() - begin;
    }
    fact((long long)median(samples, TURNS), "mark.delay");
    GPU(gpu_event_destroy(mark));
    GPU(gpu_event_destroy(after));
    GPU(gpu_stream_destroy(stream));
}

/* A device that is idle: the mark is reached at once, or soon. */
static void idle(void) {
    enum { TURNS = 9 };
    uint64_t samples[TURNS];
    gpu_event mark;
    GPU(gpu_event_create(&mark));
    for (int turn = 0; turn < TURNS; turn++) {
        GPU(gpu_sync());
        uint64_t begin = now_ns();
        GPU(record_all(context, mark));
        while (gpu_event_query(mark) == GPU_NOT_READY)
            ;
        samples[turn] = now_ns() - begin;
    }
    fact((long long)median(samples, TURNS), "mark.idle_ns");
    GPU(gpu_event_destroy(mark));
}

int main(void) {
    GPU(gpu_set_device(0));
    load_kernels();
    record_all = (int (*)(void *, gpu_event))find_if_there("cuCtxRecordEvent");
    fact(record_all != NULL, "mark.exists");
    if (!record_all)
        return 0;
    GPU(((int (*)(void **))find("cuCtxGetCurrent"))(&context));
    kernels();
    destroyed_stream(BLOCKING);
    destroyed_stream(NON_BLOCKING);
    copy_to_host();
    graph();
    other_thread();
    later_work();
    delay();
    idle();
    return 0;
}
