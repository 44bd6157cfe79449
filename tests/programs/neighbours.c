/*
 * Two contexts on one device. What the one has freed, the other can have.
 *
 *   neighbours turns    each takes and frees 5/8 of the device in its turn
 *   neighbours busy     the same while another device works for an hour, which
 *                       nobody waits for
 *   neighbours told     one frees 3/4 of it; the other is told how much is
 *                       free, and gets that much in one piece
 *   neighbours capture  as `turns`, while a stream captures a graph
 *   neighbours threads  as `turns`, each in a thread of its own
 *   neighbours race     the same, but nobody waits for a turn
 *
 * Kernels still write into what is freed.
 */
#include "gpu.h"

#include "find.h"

#include <pthread.h>

enum { ROUNDS = 12, PAGE = 2 << 20 };

typedef unsigned long long address;

static const uint64_t kernel_ns = 5 * 1000 * 1000;

static int (*create)(void **, unsigned, int);
static int (*destroy)(void *);
static int (*set_current)(void *);
static int (*allocate)(address *, size_t);
static int (*release)(address);
static int (*memory_info)(size_t *, size_t *);
static int (*synchronize)(void);

static void *contexts[2];
static size_t total;

static void find_all(void) {
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    *(void **)&set_current = find("cuCtxSetCurrent");
    *(void **)&allocate = find("cuMemAlloc_v2");
    *(void **)&release = find("cuMemFree_v2");
    *(void **)&memory_info = find("cuMemGetInfo_v2");
    *(void **)&synchronize = find("cuCtxSynchronize");
}

/* A share of the device in whole pages. */
static size_t eighths(int count) {
    return total / 8 * (size_t)count / PAGE * PAGE;
}

/* Takes this much in pieces, writes to them, and frees them under the writes. */
static int take_and_free(size_t size, int pieces) {
    address blocks[8];
    int code = 0, count = 0;
    while (count < pieces && code == 0) {
        code = allocate(&blocks[count], size / (size_t)pieces);
        if (code == 0)
            GPU(gpu_fill(NULL, (void *)blocks[count++], 1, 1024, kernel_ns));
    }
    while (count > 0)
        GPU(release(blocks[--count]));
    return code;
}

static void turns(void) {
    int failed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        GPU(set_current(contexts[round % 2]));
        failed += take_and_free(eighths(5), 1 + round % 3 * 2) != 0;
    }
    printf("failed: %d\n", failed);
}

static void capture(void) {
    gpu_stream stream;
    gpu_graph graph;
    GPU(set_current(contexts[1]));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    turns();
    GPU(set_current(contexts[1]));
    printf("the capture ends: %d\n", gpu_capture_end(stream, &graph));
}

static void busy(void) {
    enum { SMALL = 64 };
    static const uint64_t hour = 3600ull * 1000 * 1000 * 1000;
    address small[SMALL], block;
    gpu_stream stream;
    gpu_event end;
    void *far;
    GPU(gpu_set_device(1));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_event_create(&end));
    GPU(gpu_malloc(&far, 1 << 20));
    GPU(gpu_fill(stream, far, 1, 1024, hour));
    GPU(gpu_event_record(end, stream));
    GPU(set_current(contexts[0]));
    GPU(take_and_free(eighths(5), 1));
    GPU(set_current(contexts[1]));
    for (int i = 0; i < SMALL; i++)
        GPU(allocate(&small[i], 200 << 10));
    for (int i = 0; i < SMALL; i += 2)
        GPU(release(small[i]));
    printf("much at once: %d\n", allocate(&block, eighths(5)));
    GPU(gpu_set_device(1));
    printf("device 1 was still at work: %s\n",
           gpu_event_query(end) == GPU_NOT_READY ? "yes" : "no");
}

static void told(void) {
    size_t available = 0;
    address block;
    GPU(set_current(contexts[1]));
    GPU(allocate(&block, 1000));
    GPU(release(block));
    GPU(set_current(contexts[0]));
    GPU(take_and_free(eighths(6), 3));
    GPU(set_current(contexts[1]));
    GPU(memory_info(&available, NULL));
    printf("most of it is free: %d\n", available >= eighths(7));
    printf("and can be had: %d\n", allocate(&block, available / PAGE * PAGE));
    GPU(memory_info(&available, NULL));
    printf("then little is: %d\n", available < eighths(1));
    GPU(set_current(contexts[0]));
    GPU(memory_info(&available, NULL));
    printf("to both: %d\n", available < eighths(1));
    GPU(release(block));
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int in_turn;

static void *one_thread(void *context) {
    intptr_t failed = 0;
    GPU(set_current(context));
    for (int round = 0; round < ROUNDS; round++) {
        if (in_turn)
            pthread_mutex_lock(&turn);
        failed += take_and_free(eighths(5), 1 + round % 3) != 0;
        if (in_turn)
            pthread_mutex_unlock(&turn);
    }
    return (void *)failed;
}

static void threads(void) {
    pthread_t both[2];
    intptr_t failed = 0;
    for (int i = 0; i < 2; i++)
        pthread_create(&both[i], NULL, one_thread, contexts[i]);
    for (int i = 0; i < 2; i++) {
        void *count;
        pthread_join(both[i], &count);
        failed += (intptr_t)count;
    }
    if (in_turn)
        printf("failed: %d\n", (int)failed);
    else
        printf("all rounds are over\n");
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    GPU(gpu_set_device(0));
    find_all();
    for (int i = 0; i < 2; i++)
        GPU(create(&contexts[i], 0, 0));
    GPU(memory_info(NULL, &total));
    if (!strcmp(what, "turns"))
        turns();
    else if (!strcmp(what, "capture"))
        capture();
    else if (!strcmp(what, "busy"))
        busy();
    else if (!strcmp(what, "told"))
        told();
    else if (!strcmp(what, "threads") || !strcmp(what, "race")) {
        in_turn = !strcmp(what, "threads");
        threads();
    } else {
        fprintf(stderr, "usage: neighbours turns|capture|busy|told|threads|race\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        GPU(set_current(contexts[i]));
        GPU(synchronize());
        GPU(destroy(contexts[i]));
    }
    return 0;
}
