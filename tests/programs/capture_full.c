/*
 * Fills a device with live blocks, and then captures a graph while every
 * second block is freed under a running kernel and allocated again, over and
 * over. There is always room for it: what was freed. A kernel must never write
 * into a block that it was not given.
 *
 *   capture_full [both | beside]
 *
 * With `both`, device 1 is filled as well and its streams read what is freed. With
 * `beside`, another context of the device was made before and has no memory, and a thread
 * asks for some in it, and for memory past the pool, all the time: nobody can have a page of
 * the device that is full.
 * Exit: 0 right, 1 something failed, 3 a block did not hold what it should.
 */
#include "gpu.h"

#include "beside.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 1024, ROUNDS = 6, LATE = 0x5eed };

static const size_t size = 1 << 20;
static const uint64_t kernel_ns = 20 * 1000 * 1000;

struct device {
    int number, count;
    void *blocks[MOST];
    gpu_stream work, captured, fresh;
};

static void fill_up(struct device *device) {
    int code = 0;
    GPU(gpu_set_device(device->number));
    GPU(gpu_stream_create(&device->work));
    GPU(gpu_stream_create(&device->captured));
    GPU(gpu_stream_create(&device->fresh));
    while (device->count < MOST && !code) {
        code = gpu_malloc(&device->blocks[device->count], size);
        device->count += !code;
    }
    printf("device %d is full: %d, last error %d\n", device->number, code,
           gpu_last_error());
    /* Loads the kernels, which a capture would forbid. */
    GPU(gpu_fill(device->work, device->blocks[0], 0, size / 4, 0));
    GPU(gpu_stream_sync(device->work));
}

/* How many of the blocks that were made anew hold their value. */
static int count_wrong(const struct device *device, uint32_t value) {
    int wrong = 0;
    for (int i = 0; i < device->count; i += 2) {
        uint32_t word = 0;
        GPU(gpu_copy_out(&word, device->blocks[i], sizeof word));
        wrong += word != value;
    }
    return wrong;
}

/* The last block is the reader's own, the others it only reads. */
static void start_work(struct device *device, struct device *reader, int i) {
    if (reader) {
        GPU(gpu_set_device(reader->number));
        GPU(gpu_spin(reader->work, kernel_ns));
        GPU(gpu_copy_unified(reader->blocks[0], device->blocks[i], size,
                             reader->work));
        GPU(gpu_set_device(device->number));
    }
    GPU(gpu_fill(device->work, device->blocks[i], LATE, size / 4, kernel_ns));
}

static int capture(struct device *device, struct device *reader) {
    gpu_graph graph = NULL;
    int wrong = 0;
    GPU(gpu_set_device(device->number));
    GPU(gpu_capture_begin(device->captured, GPU_CAPTURE_RELAXED));
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < device->count; i += 2) {
            if (i < 8)
                start_work(device, reader, i);
            GPU(gpu_free(device->blocks[i]));
        }
        for (int i = 0; i < device->count; i += 2) {
            int code = gpu_malloc(&device->blocks[i], size);
            if (code) {
                printf("round %u, block %d: %d\n", round, i, code);
                exit(1);
            }
            GPU(gpu_fill(device->fresh, device->blocks[i], round, size / 4, 100));
        }
    }
    GPU(gpu_capture_end(device->captured, &graph));
    GPU(gpu_sync());
    wrong = count_wrong(device, ROUNDS);
    printf("device %d: %d wrong\n", device->number, wrong);
    return wrong;
}

static void *another;
static atomic_int is_over;

/* A CUmemAllocationProp: pinned memory of device 0. */
struct prop {
    int type, handles, location, device;
    void *unused;
    unsigned char flags[64];
};

static void *ask_beside(void *got) {
    const struct prop prop = {.type = 1, .location = 1};
    int (*set)(void *), (*take)(unsigned long long *, size_t);
    int (*create)(unsigned long long *, size_t, const struct prop *, unsigned long long);
    *(void **)&set = find("cuCtxSetCurrent");
    *(void **)&take = find("cuMemAlloc_v2");
    *(void **)&create = find("cuMemCreate");
    GPU(set(another));
    while (!is_over) {
        unsigned long long taken;
        *(int *)got += !take(&taken, 2 << 20);
        *(int *)got += !create(&taken, 2 << 20, &prop, 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    static struct device first = {.number = 0}, second = {.number = 1};
    const int both = argc == 2 && !strcmp(argv[1], "both");
    const int beside = argc == 2 && !strcmp(argv[1], "beside");
    pthread_t thread;
    int wrong, got = 0;
    if (argc > 1 + both + beside) {
        fprintf(stderr, "usage: capture_full [both | beside]\n");
        return 2;
    }
    if (beside)
        another = make_context_beside();
    fill_up(&first);
    if (both)
        fill_up(&second);
    if (beside && pthread_create(&thread, NULL, ask_beside, &got))
        return 1;
    wrong = capture(&first, both ? &second : NULL);
    is_over = 1;
    if (beside && (pthread_join(thread, NULL) || got))
        printf("another context got %d pages\n", got);
    if (both)
        wrong += capture(&second, &first);
    return wrong ? 3 : 0;
}
