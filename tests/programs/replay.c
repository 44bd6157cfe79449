/*
 * Replays a trace of allocations and frees.
 *
 *   replay TRACE.csv PASSES [keep | KERNEL_NS]
 *
 * A line of the trace is `k,id,size,stream`: k is `a` (allocate) or `f`
 * (free), size in bytes; `s,0,0,0` waits for the device. Each pass does all events in their order and then,
 * not timed, frees what is still live; with `keep`, not after the last pass.
 * Prints one line per pass,
 *
 *   pass=1 events=11264 ns_per_event=410.3
 *
 * and one at the end,
 *
 *   total allocations=5633 frees=5633 peak_live=7216123392
 *
 * Only plain allocations and frees are made: it runs wherever CUDA does. With
 * KERNEL_NS, a kernel that takes so long is launched before every 4th event.
 */
#include "gpu.h"

#include <time.h>

struct event {
    size_t size; /* 0 for a free */
    uint32_t id; /* WAIT: of no block */
};

enum { WAIT = UINT32_MAX };

struct trace {
    struct event *events;
    size_t count;
    uint32_t ids;
    size_t allocations, peak_live;
};

static void give_up(const char *path, size_t line, const char *why) {
    fprintf(stderr, "replay: %s:%zu: %s\n", path, line, why);
    exit(1);
}

static void *grown(void *memory, size_t size) {
    void *larger = realloc(memory, size);
    if (!larger) {
        fprintf(stderr, "replay: no host memory\n");
        exit(1);
    }
    return larger;
}

static struct trace read_trace(const char *path) {
    struct trace trace = {0};
    size_t capacity = 0;
    char line[128];
    FILE *file = fopen(path, "r");
    if (!file)
        give_up(path, 0, "cannot be opened");
    while (fgets(line, sizeof line, file)) {
        char kind;
        unsigned long id;
        size_t size;
        unsigned long stream;
        if (sscanf(line, "%c,%lu,%zu,%lu", &kind, &id, &size, &stream) != 4 ||
            (kind != 'a' && kind != 'f' && kind != 's') || id >= WAIT ||
            (kind == 'a' && size == 0))
            give_up(path, trace.count + 1, "not a line k,id,size,stream");
        if (trace.count == capacity) {
            capacity = capacity ? capacity * 2 : 4096;
            trace.events =
                grown(trace.events, capacity * sizeof *trace.events);
        }
        trace.events[trace.count++] =
            (struct event){kind == 'a' ? size : 0,
                           kind == 's' ? WAIT : (uint32_t)id};
        if (kind != 's' && id >= trace.ids)
            trace.ids = (uint32_t)id + 1;
    }
    fclose(file);
    if (!trace.count)
        give_up(path, 1, "the trace is empty");
    return trace;
}

/* Every free has its allocation; counts what is live at the worst. */
static void check_trace(struct trace *trace, const char *path) {
    size_t *live = calloc(trace->ids, sizeof *live);
    size_t bytes = 0;
    if (!live)
        give_up(path, 0, "no host memory");
    for (size_t i = 0; i < trace->count; i++) {
        struct event *event = &trace->events[i];
        if (event->id == WAIT)
            continue;
        if (!event->size == !live[event->id])
            give_up(path, i + 1,
                    event->size ? "allocated twice" : "free of nothing");
        if (event->size) {
            trace->allocations++;
            bytes += event->size;
        } else {
            bytes -= live[event->id];
        }
        live[event->id] = event->size;
        if (bytes > trace->peak_live)
            trace->peak_live = bytes;
    }
    free(live);
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void run_pass(const struct trace *trace, void **blocks, int pass,
                     int keep, uint64_t kernel_ns) {
    double begin = now_ns();
    for (size_t i = 0; i < trace->count; i++) {
        const struct event *event = &trace->events[i];
        if (kernel_ns && i % 4 == 0)
            GPU(gpu_spin(NULL, kernel_ns));
        if (event->id == WAIT) {
            GPU(gpu_sync());
        } else if (event->size) {
            GPU(gpu_malloc(&blocks[event->id], event->size));
        } else {
            GPU(gpu_free(blocks[event->id]));
            blocks[event->id] = NULL;
        }
    }
    double per_event = (now_ns() - begin) / (double)trace->count;
    for (uint32_t id = 0; id < trace->ids && !keep; id++) {
        if (blocks[id])
            GPU(gpu_free(blocks[id]));
        blocks[id] = NULL;
    }
    printf("pass=%d events=%zu ns_per_event=%.1f\n", pass, trace->count,
           per_event);
}

int main(int argc, char **argv) {
    int passes = argc == 3 || argc == 4 ? atoi(argv[2]) : 0;
    int keep = argc == 4 && !strcmp(argv[3], "keep");
    char *end = "";
    uint64_t kernel_ns = argc == 4 && !keep ? strtoull(argv[3], &end, 10) : 0;
    if (passes < 1 || *end) {
        fprintf(stderr,
                "usage: replay TRACE.csv PASSES [keep | KERNEL_NS]\n");
        return 2;
    }
    struct trace trace = read_trace(argv[1]);
    check_trace(&trace, argv[1]);
    void **blocks = calloc(trace.ids, sizeof *blocks);
    if (!blocks)
        give_up(argv[1], 0, "no host memory");
    GPU(gpu_set_device(0));
    for (int pass = 1; pass <= passes; pass++)
        run_pass(&trace, blocks, pass, keep && pass == passes, kernel_ns);
    size_t all = trace.allocations * (size_t)passes, kept = 0;
    for (uint32_t id = 0; id < trace.ids; id++)
        kept += blocks[id] != NULL;
    printf("total allocations=%zu frees=%zu peak_live=%zu\n", all, all - kept,
           trace.peak_live);
    free(blocks);
    free(trace.events);
    return 0;
}
