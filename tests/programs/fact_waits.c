/*
 * Do allocations and frees wait for kernels that run? For each sort of stream
 * a kernel is put on, for memory that the kernel uses and other memory, below
 * and above the size from which the driver gives pages of their own.
 */
#include "facts.h"

static const size_t sizes[] = {4096, 512 << 10, 1 << 20, 2 << 20, 64 << 20};

enum { SIZES = sizeof sizes / sizeof *sizes };

/* A kernel that runs, on memory of its own, and the event behind it. */
struct running {
    int sort;
    gpu_stream stream;
    gpu_event event;
    void *scratch;
};

static struct running begin_for(uint64_t ns, int sort, void *used) {
    struct running running = {.sort = sort, .stream = stream_of(sort)};
    GPU(gpu_event_create(&running.event));
    GPU(gpu_malloc(&running.scratch, 4096));
    GPU(gpu_sync());
    GPU(gpu_fill(running.stream, used ? used : running.scratch, 1, 16, ns));
    GPU(gpu_event_record(running.event, running.stream));
    return running;
}

static struct running begin(int sort, void *used) {
    return begin_for(KERNEL_NS, sort, used);
}

/* Whether what was done meanwhile has waited for it. */
static int end(struct running running) {
    int waited = gpu_event_query(running.event) == GPU_SUCCESS;
    GPU(gpu_event_sync(running.event));
    GPU(gpu_sync());
    GPU(gpu_free(running.scratch));
    GPU(gpu_event_destroy(running.event));
    drop_stream(running.sort, running.stream);
    return waited;
}

static void free_of(int sort, size_t size, int own) {
    void *block;
    GPU(gpu_malloc(&block, size));
    struct running running = begin(sort, own ? block : NULL);
    GPU(gpu_free(block));
    fact(end(running), "free_waits.%s.%s.%zu", own ? "own" : "other",
         stream_sorts[sort], size);
}

static void malloc_of(int sort, size_t size) {
    void *block;
    struct running running = begin(sort, NULL);
    GPU(gpu_malloc(&block, size));
    fact(end(running), "malloc_waits.%s.%zu", stream_sorts[sort], size);
    GPU(gpu_free(block));
}

static void host_of(int sort, size_t size) {
    void *block, *other;
    GPU(gpu_malloc_host(&block, size));
    struct running running = begin(sort, NULL);
    GPU(gpu_free_host(block));
    fact(end(running), "free_host_waits.%s.%zu", stream_sorts[sort], size);
    /* Locking so many pages may take longer than other calls. */
    running = begin_for(10 * KERNEL_NS, sort, NULL);
    GPU(gpu_malloc_host(&other, size));
    fact(end(running), "malloc_host_waits.%s.%zu", stream_sorts[sort], size);
    GPU(gpu_free_host(other));
}

/* Memory of the plain allocation, freed in the order of a stream. */
static void ordered_free(size_t size) {
    void *block;
    GPU(gpu_malloc(&block, size));
    struct running running = begin(NON_BLOCKING, block);
    int code = gpu_free_async(block, running.stream);
    fact(code, "free_async_of_plain.%zu", size);
    fact(end(running), "free_async_waits.%zu", size);
    if (code) {
        gpu_last_error();
        GPU(gpu_free(block));
    }
}

int main(void) {
    GPU(gpu_set_device(0));
    load_kernels();
    for (int sort = 0; sort < STREAM_SORTS; sort++)
        for (int i = 0; i < SIZES; i++) {
            free_of(sort, sizes[i], 1);
            free_of(sort, sizes[i], 0);
            malloc_of(sort, sizes[i]);
        }
    for (int sort = 0; sort < STREAM_SORTS; sort++)
        for (int i = 0; i < SIZES; i += 2)
            host_of(sort, sizes[i]);
    for (int i = 0; i < SIZES; i += 3)
        ordered_free(sizes[i]);
    return 0;
}
