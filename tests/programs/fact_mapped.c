/*
 * What CUDA's virtual memory does, for memory in units: what one call may
 * cover, what it waits for, what a capture forbids, what it costs, and whether
 * the driver's free of a page waits for kernels on mapped memory.
 */
#include "virtual.h"

#include <pthread.h>

enum { UNITS = 64, MODES = 3, RELAXED = 2 };

static const char *const modes[] = {"global", "thread_local", "relaxed"};

static uint64_t units[UNITS];

static int map(int place) {
    return driver.map(at(place), unit, 0, units[place], 0);
}

static int is_near(long long value, size_t expected) {
    long long apart = value - (long long)expected;
    return apart > -(1 << 20) && apart < (1 << 20);
}

static void amounts(void) {
    uint64_t one;
    long long before = available();
    GPU(driver.create(&one, 32 * unit, &properties, 0));
    fact(is_near(before - available(), 32 * unit), "mapped.create_takes");
    GPU(driver.map(at(0), 32 * unit, 0, one, 0));
    GPU(driver.release(one));
    fact(is_near(before - available(), 32 * unit), "mapped.release_keeps");
    GPU(unmap(0, 32));
    fact(is_near(before - available(), 0), "mapped.unmap_gives");
}

/* What one call covers. */
static void extents(void) {
    uint64_t large;
    address base = 0;
    size_t size = 0;
    char handle[64];
    GPU(driver.create(&large, 2 * unit, &properties, 0));
    fact(driver.map(at(8), unit, unit, large, 0), "mapped.with_offset");
    unmap(8, 1);
    GPU(driver.release(large));
    GPU(map(0));
    GPU(map(1));
    fact(admit(0, 2), "mapped.access_to_two");
    fact(driver.range(&base, &size, at(1) + 512), "mapped.range");
    fact(base == at(1) && size == unit, "mapped.range.is_unit");
    fact(driver.handle(handle, at(0)) != 0, "mapped.handle_refused");
    fact(unmap(0, 2), "mapped.unmap_two");
    GPU(map(2));
    GPU(admit(2, 1));
    fact(driver.unmap(at(2), unit / 2) != 0, "mapped.unmap_half_refused");
    unmap(2, 1);
}

/* While a kernel works on other mapped memory. */
static void waits(void) {
    gpu_stream stream = stream_of(NON_BLOCKING);
    gpu_event event;
    void *page;
    GPU(gpu_event_create(&event));
    GPU(map(0));
    GPU(admit(0, 1));
    GPU(map(1));
    GPU(admit(1, 1));
    GPU(gpu_malloc(&page, 2 << 20));
    const char *const names[] = {"create", "map", "access", "unmap", "free"};
    for (int call = 0; call < 5; call++) {
        uint64_t one = 0;
        GPU(gpu_fill(stream, (void *)at(0), 1, 16, KERNEL_NS));
        GPU(gpu_event_record(event, stream));
        if (call == 0)
            GPU(driver.create(&one, unit, &properties, 0));
        else if (call == 1)
            GPU(map(2));
        else if (call == 2)
            GPU(admit(2, 1));
        else if (call == 3)
            GPU(unmap(1, 1));
        else
            GPU(gpu_free(page));
        fact(gpu_event_query(event) == GPU_SUCCESS, "mapped_waits.%s",
             names[call]);
        GPU(gpu_event_sync(event));
        if (one)
            GPU(driver.release(one));
    }
    GPU(gpu_sync());
    GPU(unmap(0, 1));
    GPU(unmap(2, 1));
    GPU(gpu_event_destroy(event));
    drop_stream(NON_BLOCKING, stream);
}

enum { CREATE, MAP, ACCESS, RELEASE, UNMAP, CALLS };
static const char *const calls[] = {"create", "map", "access", "release", "unmap"};

/* A call on unit 0, and what it made or was answered. */
struct called {
    int call, code;
    uint64_t made;
};

static void *call_now(void *argument) {
    struct called *called = argument;
    int call = called->call;
    GPU(gpu_set_device(0));
    if (call == CREATE)
        called->code = driver.create(&called->made, unit, &properties, 0);
    else if (call == MAP)
        called->code = map(0);
    else if (call == ACCESS)
        called->code = admit(0, 1);
    else if (call == RELEASE)
        called->code = driver.release(called->made);
    else
        called->code = unmap(0, 1);
    if ((call == RELEASE) == !called->code)
        called->made = 0;
    return NULL;
}

/* What the library calls while a stream captures, in the relaxed mode of its thread,
 * and the unmapping that it leaves for later; the same in the mode in which the
 * thread is, and by a thread that does not capture. */
static void captures(int mode) {
    static const char *const ways[] = {"", "_as_it_is", "_other_thread"};
    for (int turn = 0; turn < 3 * CALLS; turn++) {
        struct called called = {.call = turn % CALLS};
        int way = turn / CALLS, relaxed = RELAXED;
        gpu_graph graph = NULL;
        gpu_stream stream;
        void *executable;
        if (called.call >= ACCESS)
            GPU(map(0));
        if (called.call >= RELEASE)
            GPU(admit(0, 1));
        if (called.call == RELEASE)
            GPU(driver.create(&called.made, unit, &properties, 0));
        GPU(gpu_stream_create(&stream));
        GPU(gpu_capture_begin(stream, mode));
        GPU(gpu_spin(stream, 1000));
        if (way == 0)
            GPU(driver.exchange_mode(&relaxed));
        if (way < 2) {
            call_now(&called);
        } else {
            pthread_t other;
            pthread_create(&other, NULL, call_now, &called);
            pthread_join(other, NULL);
        }
        if (way == 0)
            GPU(driver.exchange_mode(&relaxed));
        int end = gpu_capture_end(stream, &graph);
        gpu_last_error();
        const char *call = calls[called.call];
        fact(called.code, "mapped_capture.%s.%s%s", modes[mode], call, ways[way]);
        fact(end, "mapped_capture.%s.%s%s.end", modes[mode], call, ways[way]);
        if (!end) {
            GPU(gpu_graph_prepare(&executable, graph));
            GPU(gpu_graph_destroy(executable));
        }
        GPU(gpu_stream_destroy(stream));
        GPU(gpu_sync());
        if (called.made)
            GPU(driver.release(called.made));
        int is_mapped = called.call == MAP     ? !called.code
                        : called.call == UNMAP ? called.code
                                               : called.call != CREATE;
        if (is_mapped)
            GPU(unmap(0, 1));
    }
}

/* The time of a statement for each unit, on an idle device. */
#define EACH(statement)                                                        \
    ({                                                                         \
        uint64_t samples[UNITS];                                               \
        for (int turn = 0; turn < UNITS; turn++) {                             \
            uint64_t begin = now_ns();                                         \
            GPU(statement);                                                    \
            samples[turn] = now_ns() - begin;                                  \
        }                                                                      \
        (long long)median(samples, UNITS);                                     \
    })

static void costs(void) {
    fact(EACH(map(turn)), "cost.mapped.map");
    uint64_t begin = now_ns();
    GPU(admit(0, UNITS));
    fact((long long)(now_ns() - begin), "cost.mapped.access.%d", UNITS);
    fact(EACH(unmap(turn, 1)), "cost.mapped.unmap");
    fact(EACH(map(turn)), "cost.mapped.map_again");
    fact(EACH(admit(turn, 1)), "cost.mapped.access");
    begin = now_ns();
    int code = unmap(0, UNITS);
    fact((long long)(now_ns() - begin), "cost.mapped.unmap.%d", UNITS);
    for (int place = 0; code && place < UNITS; place++)
        unmap(place, 1);
}

int main(void) {
    size_t least = 0;
    GPU(gpu_set_device(0));
    load_kernels();
    int has = has_virtual();
    fact(has, "mapped.supported");
    if (!has)
        return 0;
    GPU(driver.granularity(&least, &properties, 0));
    GPU(driver.granularity(&unit, &properties, 1));
    fact((long long)least, "mapped.granularity.least");
    fact((long long)unit, "mapped.granularity.recommended");
    GPU(driver.reserve(&range, UNITS * unit, 0, 0, 0));
    amounts();
    fact(EACH(driver.create(&units[turn], unit, &properties, 0)),
         "cost.mapped.create");
    extents();
    waits();
    for (int mode = 0; mode < MODES; mode++)
        captures(mode);
    costs();
    fact(EACH(driver.release(units[turn])), "cost.mapped.release");
    GPU(driver.unreserve(range, UNITS * unit));
    return 0;
}
