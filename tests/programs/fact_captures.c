/*
 * What a capture forbids: each call of a list, made while a stream captures a
 * graph, in each mode of capture, by the thread that captures and by another;
 * what it answered, and what the end of the capture answered after it.
 */
#include "facts.h"
#include "find.h"

#include <pthread.h>

enum { MODES = 3, SMALL = 4096, LARGE = 4 << 20, RELAXED = 2 };

static const char *const modes[] = {"global", "thread_local", "relaxed"};

static int (*record_all)(void *, gpu_event);
static int (*exchange_mode)(int *);

/* What the calls are made with; of it the stream that captures alone belongs to the
 * capture. */
static struct {
    void *context, *small, *large, *host;
    gpu_stream other, capturing;
    gpu_event event;
} at_hand;

static int allocate(void) { return gpu_malloc(&at_hand.small, SMALL); }

static int free_small(void) {
    int code = gpu_free(at_hand.small);
    if (!code)
        at_hand.small = NULL;
    return code;
}

static int free_large(void) {
    int code = gpu_free(at_hand.large);
    if (!code)
        at_hand.large = NULL;
    return code;
}

static int free_host(void) {
    int code = gpu_free_host(at_hand.host);
    if (!code)
        at_hand.host = NULL;
    return code;
}

static int host_allocate(void) { return gpu_malloc_host(&at_hand.host, SMALL); }

static int mem_info(void) {
    size_t available, total;
    return gpu_mem_info(&available, &total);
}

static int query(void) { return gpu_event_query(at_hand.event); }

static int record(void) {
    return gpu_event_record(at_hand.event, at_hand.other);
}

static int mark(void) {
    return record_all ? record_all(at_hand.context, at_hand.event)
                      : GPU_NOT_SUPPORTED;
}

static int wait_stream(void) { return gpu_stream_sync(at_hand.other); }

static int wait_all(void) { return gpu_sync(); }

/* What the driver is asked about the stream that captures; where it has no such
 * function, not supported. */
static int ask(const char *name) {
    int (*function)(gpu_stream, void *) = (int (*)(gpu_stream, void *))find_if_there(name);
    unsigned long long answer;
    return function ? function(at_hand.capturing, &answer) : GPU_NOT_SUPPORTED;
}

static int ask_capturing(void) { return ask("cuStreamIsCapturing"); }
static int ask_number(void) { return ask("cuStreamGetId"); }
static int ask_context(void) { return ask("cuStreamGetCtx"); }
static int ask_flags(void) { return ask("cuStreamGetFlags"); }
static int ask_priority(void) { return ask("cuStreamGetPriority"); }
static int ask_device(void) { return ask("cuStreamGetDevice"); }

/* The same in the relaxed mode of the thread. */
static int relaxed(int (*call)(void)) {
    int mode = RELAXED;
    GPU(exchange_mode(&mode));
    int code = call();
    GPU(exchange_mode(&mode));
    return code;
}

static int relaxed_allocate(void) { return relaxed(allocate); }
static int relaxed_free_small(void) { return relaxed(free_small); }
static int relaxed_free_large(void) { return relaxed(free_large); }
static int relaxed_host_allocate(void) { return relaxed(host_allocate); }
static int relaxed_free_host(void) { return relaxed(free_host); }
static int relaxed_query(void) { return relaxed(query); }
static int relaxed_record(void) { return relaxed(record); }
static int relaxed_mark(void) { return relaxed(mark); }
static int relaxed_wait_all(void) { return relaxed(wait_all); }
static int relaxed_wait_stream(void) { return relaxed(wait_stream); }

static const struct call {
    const char *name;
    int (*make)(void);
} calls[] = {
    {"malloc", allocate},
    {"free_small", free_small},
    {"free_large", free_large},
    {"malloc_host", host_allocate},
    {"free_host", free_host},
    {"mem_info", mem_info},
    {"event_query", query},
    {"event_record", record},
    {"ctx_record_event", mark},
    {"stream_synchronize", wait_stream},
    {"ctx_synchronize", wait_all},
    {"exchanged_malloc", relaxed_allocate},
    {"exchanged_free_small", relaxed_free_small},
    {"exchanged_free_large", relaxed_free_large},
    {"exchanged_malloc_host", relaxed_host_allocate},
    {"exchanged_free_host", relaxed_free_host},
    {"exchanged_event_query", relaxed_query},
    {"exchanged_event_record", relaxed_record},
    {"exchanged_ctx_record_event", relaxed_mark},
    {"exchanged_ctx_synchronize", relaxed_wait_all},
    {"exchanged_stream_synchronize", relaxed_wait_stream},
    {"is_capturing", ask_capturing},
    {"stream_id", ask_number},
    {"stream_context", ask_context},
    {"stream_flags", ask_flags},
    {"stream_priority", ask_priority},
    {"stream_device", ask_device},
};

/* `malloc` and its like fill the place, all others find it filled. */
static void prepare(void) {
    if (!at_hand.small)
        GPU(gpu_malloc(&at_hand.small, SMALL));
    if (!at_hand.large)
        GPU(gpu_malloc(&at_hand.large, LARGE));
    if (!at_hand.host)
        GPU(gpu_malloc_host(&at_hand.host, SMALL));
    GPU(gpu_event_record(at_hand.event, at_hand.other));
    GPU(gpu_sync());
}

struct made {
    const struct call *call;
    int code;
};

static void *make(void *argument) {
    struct made *made = argument;
    made->code = made->call->make();
    return NULL;
}

static void *make_in_thread(void *argument) {
    GPU(gpu_set_device(0));
    return make(argument);
}

static void during_capture(const struct call *call, int mode, int other) {
    struct made made = {.call = call};
    const char *who = other ? "other_thread" : "same_thread";
    gpu_stream stream;
    gpu_graph graph = NULL;
    void *executable;
    prepare();
    /* What malloc puts there is one more. */
    void *small = at_hand.small, *host = at_hand.host;
    GPU(gpu_stream_create(&stream));
    at_hand.capturing = stream;
    GPU(gpu_capture_begin(stream, mode));
    GPU(gpu_spin(stream, 1000));
    if (other) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, make_in_thread, &made))
            exit(1);
        pthread_join(thread, NULL);
    } else {
        make(&made);
    }
    int end = gpu_capture_end(stream, &graph);
    gpu_last_error();
    fact(made.code, "capture.%s.%s.%s", modes[mode], who, call->name);
    fact(end, "capture.%s.%s.%s.end", modes[mode], who, call->name);
    if (!end) {
        GPU(gpu_graph_prepare(&executable, graph));
        GPU(gpu_graph_destroy(executable));
    }
    GPU(gpu_stream_destroy(stream));
    GPU(gpu_sync());
    if (at_hand.small && small != at_hand.small)
        GPU(gpu_free(small));
    if (at_hand.host && host != at_hand.host)
        GPU(gpu_free_host(host));
}

/* In a capture that allows it, does the driver's free wait for the kernel
 * that uses the memory? The library gives chunks back only because it does. */
static void free_under_kernel(size_t size) {
    gpu_stream capturing, busy;
    gpu_event after;
    gpu_graph graph;
    void *block, *executable;
    GPU(gpu_stream_create(&capturing));
    GPU(gpu_stream_create(&busy));
    GPU(gpu_event_create(&after));
    GPU(gpu_malloc(&block, size));
    GPU(gpu_fill(busy, block, 1, 16, KERNEL_NS));
    GPU(gpu_event_record(after, busy));
    GPU(gpu_capture_begin(capturing, GPU_CAPTURE_RELAXED));
    GPU(gpu_spin(capturing, 1000));
    GPU(gpu_free(block));
    int waited = gpu_event_query(after) == GPU_SUCCESS;
    GPU(gpu_capture_end(capturing, &graph));
    fact(waited, "capture_free_waits.%zu", size);
    GPU(gpu_event_sync(after));
    GPU(gpu_graph_prepare(&executable, graph));
    GPU(gpu_graph_destroy(executable));
    GPU(gpu_event_destroy(after));
    GPU(gpu_stream_destroy(busy));
    GPU(gpu_stream_destroy(capturing));
}

int main(void) {
    GPU(gpu_set_device(0));
    load_kernels();
    record_all = (int (*)(void *, gpu_event))find_if_there("cuCtxRecordEvent");
    exchange_mode = (int (*)(int *))find("cuThreadExchangeStreamCaptureMode");
    GPU(((int (*)(void **))find("cuCtxGetCurrent"))(&at_hand.context));
    GPU(gpu_stream_create(&at_hand.other));
    GPU(gpu_event_create(&at_hand.event));
    for (int mode = 0; mode < MODES; mode++)
        for (int other = 0; other < 2; other++)
            for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
                during_capture(&calls[i], mode, other);
    free_under_kernel(SMALL);
    free_under_kernel(LARGE);
    return 0;
}
