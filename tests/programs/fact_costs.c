/*
 * What calls cost the host: allocations and frees by size on an idle device,
 * and what the library does beside them, each as the median of many.
 */
#include "facts.h"
#include "find.h"

enum { MANY = 400, FEW = 20, STREAMS = 32 };

static const size_t sizes[] = {512,     4096,     65536,    1 << 20,
                               2 << 20, 20 << 20, 256 << 20, 1 << 30};

static int (*record_all)(void *, gpu_event);
static int (*get_current)(void **);
static int (*exchange_mode)(int *);

/* The median of `count` times of STATEMENT. */
#define MEDIAN(count, statement)                                               \
    ({                                                                         \
        uint64_t samples[MANY];                                                \
        for (int turn = 0; turn < (count); turn++) {                           \
            uint64_t begin = now_ns();                                         \
            statement;                                                         \
            samples[turn] = now_ns() - begin;                                  \
        }                                                                      \
        (long long)median(samples, (count));                                   \
    })

static void allocations(size_t size, int count) {
    void *blocks[MANY];
    size_t available;
    GPU(gpu_mem_info(&available, NULL));
    while (count > 1 && size * (size_t)count > available / 2)
        count /= 2;
    fact(MEDIAN(count, GPU(gpu_malloc(&blocks[turn], size))), "cost.malloc.%zu",
         size);
    fact(MEDIAN(count, GPU(gpu_free(blocks[turn]))), "cost.free.%zu", size);
    /* As a program without a pool does it, one block at a time. */
    fact(MEDIAN(count, {
             GPU(gpu_malloc(&blocks[0], size));
             GPU(gpu_free(blocks[0]));
         }),
         "cost.pair.%zu", size);
}

static void host_allocations(size_t size) {
    void *blocks[FEW];
    fact(MEDIAN(FEW, GPU(gpu_malloc_host(&blocks[turn], size))),
         "cost.malloc_host.%zu", size);
    fact(MEDIAN(FEW, GPU(gpu_free_host(blocks[turn]))), "cost.free_host.%zu",
         size);
}

/* Marks, with so many streams of the program that had work. */
static void marks(int count) {
    gpu_stream streams[STREAMS];
    gpu_event event;
    void *context;
    GPU(gpu_event_create(&event));
    GPU(get_current(&context));
    for (int i = 0; i < count; i++) {
        GPU(gpu_stream_create(&streams[i]));
        GPU(gpu_spin(streams[i], 1000));
    }
    GPU(gpu_sync());
    if (record_all) {
        fact(MEDIAN(MANY, GPU(record_all(context, event))),
             "cost.ctx_record_event.%d_streams", count);
        GPU(gpu_event_sync(event));
        fact(MEDIAN(MANY, GPU(gpu_event_query(event))),
             "cost.event_query.reached.%d_streams", count);
        for (int i = 0; i < count; i++)
            GPU(gpu_spin(streams[i], 2 * KERNEL_NS));
        if (!count)
            GPU(gpu_spin(NULL, 2 * KERNEL_NS));
        fact(MEDIAN(MANY, GPU(record_all(context, event))),
             "cost.ctx_record_event.busy.%d_streams", count);
        fact(MEDIAN(MANY, gpu_event_query(event)),
             "cost.event_query.pending.%d_streams", count);
        GPU(gpu_sync());
    }
    for (int i = 0; i < count; i++)
        GPU(gpu_stream_destroy(streams[i]));
    GPU(gpu_event_destroy(event));
}

static void small_calls(void) {
    gpu_event event;
    gpu_stream stream;
    void *context, *block;
    size_t available;
    int mode = 2;
    GPU(gpu_event_create(&event));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&block, 4096));
    fact(MEDIAN(MANY, GPU(gpu_event_record(event, stream))), "cost.event_record");
    fact(MEDIAN(MANY, GPU(get_current(&context))), "cost.ctx_get_current");
    fact(MEDIAN(MANY, GPU(exchange_mode(&mode))), "cost.exchange_capture_mode");
    fact(MEDIAN(MANY, GPU(gpu_mem_info(&available, NULL))), "cost.mem_info");
    fact(MEDIAN(MANY, GPU(gpu_spin(stream, 0))), "cost.launch");
    GPU(gpu_sync());
    fact(MEDIAN(MANY,
                {
                    GPU(gpu_spin(stream, 0));
                    GPU(gpu_stream_sync(stream));
                }),
         "cost.launch_and_wait");
    fact(MEDIAN(MANY,
                {
                    gpu_event made;
                    GPU(gpu_event_create(&made));
                    GPU(gpu_event_destroy(made));
                }),
         "cost.event_create_destroy");
    GPU(gpu_free(block));
    GPU(gpu_stream_destroy(stream));
    GPU(gpu_event_destroy(event));
}

/* A program that frees what a kernel of 2 ms uses. */
static void free_after_launch(void) {
    gpu_stream stream;
    void *block;
    GPU(gpu_stream_create(&stream));
    fact(MEDIAN(FEW,
                {
                    GPU(gpu_malloc(&block, 1 << 20));
                    GPU(gpu_fill(stream, block, 1, 16, 2000000));
                    GPU(gpu_free(block));
                }),
         "cost.malloc_launch_free.2ms");
    GPU(gpu_stream_destroy(stream));
}

int main(void) {
    GPU(gpu_set_device(0));
    record_all = (int (*)(void *, gpu_event))find_if_there("cuCtxRecordEvent");
    get_current = (int (*)(void **))find("cuCtxGetCurrent");
    exchange_mode = (int (*)(int *))find("cuThreadExchangeStreamCaptureMode");
    load_kernels();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        allocations(sizes[i], sizes[i] > 2 << 20 ? FEW : MANY);
    host_allocations(4096);
    host_allocations(1 << 20);
    host_allocations(64 << 20);
    small_calls();
    marks(0);
    marks(1);
    marks(8);
    marks(STREAMS);
    free_after_launch();
    return 0;
}
