/*
 * Keeps device 1 busy for an hour and meanwhile uses device 0, which has
 * nothing to do with it. CUDA's own allocation and free do not wait for
 * another device: what ends its work may be something that this very thread
 * does next.
 *
 *   apart reuse    blocks come and go, many times the device's memory
 *   apart small    small ones do, very many times
 *   apart full     every second block of a full device is freed and taken anew
 *   apart context  a context of its own on device 0 ends with freed memory
 *   apart users    one does that has several users, with live memory beside
 *                  the freed, and page-locked memory too
 *   apart part     a part of device 0 is current while blocks come and go
 *   apart end      a context of device 1 ends, slowly, while blocks come and go
 *                  on device 0, which is full, and captures begin
 *   apart room     another context of device 0 begins to end while its idle
 *                  memory goes back for a request, and ends after it
 *   apart capture  a context of device 1 ends while a stream of device 0 captures:
 *                  its capture began while the other was current
 *   apart mark     a stream of device 0 captures while another thread's free on
 *                  device 1 waits in the driver
 *
 * Says whether device 1 was still at work afterwards.
 */
#include "gpu.h"

#include "find.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST = 1024, ROUNDS = 200 };

static const uint64_t hour = 3600ull * 1000 * 1000 * 1000;
static const uint64_t kernel_ns = 2 * 1000 * 1000;

static gpu_stream far_stream;
static gpu_event far_end;

static void keep_device_1_busy(void) {
    void *block;
    GPU(gpu_set_device(1));
    GPU(gpu_stream_create(&far_stream));
    GPU(gpu_event_create(&far_end));
    GPU(gpu_malloc(&block, 1 << 20));
    GPU(gpu_fill(far_stream, block, 1, 1 << 18, hour));
    GPU(gpu_event_record(far_end, far_stream));
}

static void reuse(gpu_stream stream) {
    /* A kernel fills every block, which takes a while: six times the memory. */
    for (int round = 0; round < ROUNDS / 3; round++) {
        size_t size = (size_t)(1 + round % 24) << 20;
        void *block, *small;
        GPU(gpu_malloc(&block, size));
        GPU(gpu_malloc(&small, 1000));
        GPU(gpu_fill(stream, block, 1, size / 4, kernel_ns));
        GPU(gpu_free(block));
        GPU(gpu_free(small));
    }
}

static void small(void) {
    for (int round = 0; round < 40 * ROUNDS; round++) {
        void *block;
        GPU(gpu_malloc(&block, 1000));
        GPU(gpu_free(block));
    }
}

static void full(gpu_stream stream) {
    static void *blocks[MOST];
    int count = 0, again = 0;
    while (count < MOST && gpu_malloc(&blocks[count], 1 << 20) == 0)
        count++;
    gpu_last_error();
    for (int i = 0; i < count; i += 2) {
        GPU(gpu_fill(stream, blocks[i], 1, 1 << 18, kernel_ns));
        GPU(gpu_free(blocks[i]));
    }
    for (int i = 0; i < count; i += 2)
        again += gpu_malloc(&blocks[i], 1 << 20) == 0;
    printf("all of it again: %d\n", again == (count + 1) / 2);
}

static int (*create)(void **, unsigned, int);
static int (*destroy)(void *);
static int (*attach)(void **, unsigned);
static int (*detach)(void *);
static int (*set_current)(void *);

static void context(void) {
    void *own, *blocks[8];
    GPU(create(&own, 0, 0));
    for (int i = 0; i < 8; i++)
        GPU(gpu_malloc(&blocks[i], (size_t)3 << 20));
    for (int i = 0; i < 8; i++)
        GPU(gpu_free(blocks[i]));
    GPU(destroy(own));
}

/* The other device begins when half of it is free. */
static void users(void) {
    void *own, *same, *blocks[8], *pages[8];
    GPU(create(&own, 0, 0));
    for (int i = 0; i < 8; i++) {
        GPU(gpu_malloc(&blocks[i], 3000));
        GPU(gpu_malloc_host(&pages[i], 3000));
    }
    for (int i = 0; i < 8; i += 2) {
        GPU(gpu_free(blocks[i]));
        GPU(gpu_free_host(pages[i]));
    }
    keep_device_1_busy();
    GPU(set_current(own));
    for (int i = 0; i < ROUNDS; i++) {
        GPU(attach(&same, 0));
        GPU(detach(own));
    }
    GPU(destroy(own));
}

/* One block after the other is too large to be a part of what is kept. */
static void part(void) {
    int (*resource_of)(int, void *, int), (*describe)(void **, void *, unsigned);
    int (*make)(void **, void *, int, unsigned), (*context_of)(void **, void *);
    unsigned resource[36];
    void *description, *green, *context, *block;
    *(void **)&make = find_if_there("cuGreenCtxCreate");
    if (!make)
        return;
    *(void **)&resource_of = find("cuDeviceGetDevResource");
    *(void **)&describe = find("cuDevResourceGenerateDesc");
    *(void **)&context_of = find("cuCtxFromGreenCtx");
    GPU(resource_of(0, resource, 1));
    GPU(describe(&description, resource, 1));
    GPU(make(&green, description, 0, 1));
    GPU(context_of(&context, green));
    GPU(set_current(context));
    for (int i = 0; i < 6; i++) {
        GPU(gpu_malloc(&block, (size_t)(70 + 5 * i) << 20));
        GPU(gpu_free(block));
    }
}

static atomic_int ending;
static pthread_mutex_t at_work = PTHREAD_MUTEX_INITIALIZER;

/* The driver holds the end up until the other thread is done. */
static void hold(const char *name) {
    if (strcmp(name, "cuCtxDestroy_v2"))
        return;
    ending = 1;
    pthread_mutex_lock(&at_work);
    pthread_mutex_unlock(&at_work);
}

static void *end(void *context) {
    GPU(destroy(context));
    return NULL;
}

static void beside_an_end(gpu_stream stream) {
    void (*watch)(void (*)(const char *));
    void *context, *block;
    pthread_t thread;
    gpu_graph graph;
    *(void **)&watch = find_if_there("sim_cuda_watch");
    GPU(create(&context, 0, 1));
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, 1000));
    if (watch)
        watch(hold);
    pthread_mutex_lock(&at_work);
    pthread_create(&thread, NULL, end, context);
    while (watch && !ending)
        sched_yield();
    for (int i = 0; i < ROUNDS; i++) {
        GPU(gpu_malloc(&block, (size_t)(1 + i % 24) << 20));
        GPU(gpu_free(block));
    }
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_GLOBAL));
    GPU(gpu_capture_end(stream, &graph));
    full(stream);
    pthread_mutex_unlock(&at_work);
    pthread_join(thread, NULL);
}

static _Thread_local int asks;
static atomic_int gave;

static void hold_after_a_free(const char *name) {
    if (asks && !strcmp(name, "cuMemFree_v2"))
        gave = 1;
    hold(name);
}

static void *end_meanwhile(void *context) {
    while (!gave)
        sched_yield();
    return end(context);
}

static void room_beside_an_end(void) {
    enum { BLOCKS = 8 };
    void (*watch)(void (*)(const char *));
    void *context, *own, *blocks[BLOCKS];
    size_t available, total;
    pthread_t thread;
    *(void **)&watch = find_if_there("sim_cuda_watch");
    GPU(create(&context, 0, 0));
    GPU(gpu_mem_info(&available, &total));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_malloc(&blocks[i], total / 10));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free(blocks[i]));
    GPU(create(&own, 0, 0));
    if (watch)
        watch(hold_after_a_free);
    pthread_mutex_lock(&at_work);
    pthread_create(&thread, NULL, end_meanwhile, context);
    asks = 1;
    printf("much of the device: %d\n", gpu_malloc(&blocks[0], total / 10 * 7));
    asks = 0;
    gave = 1;
    pthread_mutex_unlock(&at_work);
    pthread_join(thread, NULL);
}

static void capture(gpu_stream stream) {
    void *context, *block;
    gpu_graph graph;
    GPU(gpu_malloc(&block, 1000));
    GPU(create(&context, 0, 1));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    GPU(destroy(context));
    GPU(gpu_set_device(0));
    small();
    GPU(gpu_capture_end(stream, &graph));
}

static _Thread_local int is_held;

/* The driver keeps the thread that frees until the other one is done. */
static void hold_marks(const char *name) {
    if (!is_held ||
        (strcmp(name, "cuCtxRecordEvent") && strcmp(name, "cuEventRecord")))
        return;
    ending = 1;
    pthread_mutex_lock(&at_work);
    pthread_mutex_unlock(&at_work);
}

static void *free_many(void *context) {
    void *block;
    GPU(set_current(context));
    is_held = 1;
    for (int i = 0; i < ROUNDS && !ending; i++) {
        GPU(gpu_malloc(&block, (size_t)(1 + i % 24) << 20));
        GPU(gpu_free(block));
    }
    ending = 1;
    return NULL;
}

static void beside_a_mark(gpu_stream stream) {
    void (*watch)(void (*)(const char *));
    void *context, *block;
    pthread_t thread;
    gpu_graph graph;
    *(void **)&watch = find_if_there("sim_cuda_watch");
    GPU(create(&context, 0, 1));
    GPU(gpu_malloc(&block, 1000));
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, 1000));
    pthread_mutex_lock(&at_work);
    if (watch)
        watch(hold_marks);
    pthread_create(&thread, NULL, free_many, context);
    while (!ending)
        sched_yield();
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_GLOBAL));
    GPU(gpu_capture_end(stream, &graph));
    printf("device 0 went on\n");
    pthread_mutex_unlock(&at_work);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    gpu_stream stream;
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    *(void **)&attach = find("cuCtxAttach");
    *(void **)&detach = find("cuCtxDetach");
    *(void **)&set_current = find("cuCtxSetCurrent");
    if (strcmp(what, "users") && strcmp(what, "end") && strcmp(what, "room") &&
        strcmp(what, "mark"))
        keep_device_1_busy();
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    if (!strcmp(what, "reuse"))
        reuse(stream);
    else if (!strcmp(what, "small"))
        small();
    else if (!strcmp(what, "full"))
        full(stream);
    else if (!strcmp(what, "context"))
        context();
    else if (!strcmp(what, "users"))
        users();
    else if (!strcmp(what, "part"))
        part();
    else if (!strcmp(what, "capture"))
        capture(stream);
    else if (!strcmp(what, "end")) {
        beside_an_end(stream);
        return 0;
    } else if (!strcmp(what, "room")) {
        room_beside_an_end();
        return 0;
    } else if (!strcmp(what, "mark")) {
        beside_a_mark(stream);
        return 0;
    } else {
        fprintf(stderr, "usage: apart "
                        "reuse|small|full|context|users|part|end|room|"
                        "capture|mark\n");
        return 2;
    }
    GPU(gpu_set_device(1));
    printf("device 1 was still at work: %s\n",
           gpu_event_query(far_end) == GPU_NOT_READY ? "yes" : "no");
    return 0;
}
