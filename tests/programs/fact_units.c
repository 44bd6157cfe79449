/*
 * How CUDA's virtual memory fares with many units: what they cost by size and by
 * number, how fast the device works on memory of many, whether it is safe to unmap
 * beside memory in use, and what the driver says of an address in one.
 */
#include "virtual.h"

enum { MANY = 4096, BLOCK = 64, TURNS = 20, WRITINGS = 5, ROUNDS = 200 };

static uint64_t units[MANY], spare;

/* By size: created, mapped, let in, unmapped and released, each the median of some. */
static void sizes(void) {
    static const size_t of[] = {2 << 20, 16 << 20, 128 << 20, 1 << 30};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        uint64_t took[5][TURNS], one;
        for (int turn = 0; turn < TURNS; turn++) {
            uint64_t begin = now_ns();
            GPU(driver.create(&one, of[i], &properties, 0));
            took[0][turn] = now_ns() - begin, begin = now_ns();
            GPU(driver.map(range, of[i], 0, one, 0));
            took[1][turn] = now_ns() - begin, begin = now_ns();
            GPU(driver.admit(range, of[i], &all, 1));
            took[2][turn] = now_ns() - begin, begin = now_ns();
            GPU(driver.unmap(range, of[i]));
            took[3][turn] = now_ns() - begin, begin = now_ns();
            GPU(driver.release(one));
            took[4][turn] = now_ns() - begin;
        }
        static const char *const calls[] = {"create", "map", "access", "unmap", "release"};
        for (int call = 0; call < 5; call++)
            fact((long long)median(took[call], TURNS), "cost.unit.%s.%zu", calls[call], of[i]);
    }
}

/* Nanoseconds that writing all of the block takes, the median of some; `beside` is
 * done by the host meanwhile, over and over. */
static long long writing_beside(size_t size, void (*beside)(void)) {
    gpu_stream stream = stream_of(NON_BLOCKING);
    gpu_event event;
    uint64_t samples[WRITINGS];
    GPU(gpu_event_create(&event));
    for (int turn = 0; turn < WRITINGS; turn++) {
        GPU(gpu_stream_sync(stream));
        uint64_t begin = now_ns();
        for (int i = 0; i < 10; i++)
            GPU(gpu_set_async((void *)range, turn, size, stream));
        GPU(gpu_event_record(event, stream));
        while (beside && gpu_event_query(event))
            beside();
        GPU(gpu_stream_sync(stream));
        samples[turn] = (now_ns() - begin) / 10;
    }
    GPU(gpu_event_destroy(event));
    drop_stream(NON_BLOCKING, stream);
    return (long long)median(samples, WRITINGS);
}

static long long writing(size_t size) { return writing_beside(size, NULL); }

static void wait_a_little(void) {
    for (uint64_t begin = now_ns(); now_ns() - begin < 20000;)
        continue;
}

/* A unit behind the block. */
static void map_and_unmap(void) {
    GPU(driver.map(at(BLOCK), unit, 0, spare, 0));
    GPU(admit(BLOCK, 1));
    GPU(unmap(BLOCK, 1));
}

/* A block of one handle, of many units, and of the host's memory. */
static void speeds(void) {
    const size_t size = BLOCK * unit;
    const struct properties host = {.kind = 1, .location = {OF_HOST_NODE, 0}};
    uint64_t one;
    GPU(driver.create(&one, size, &properties, 0));
    GPU(driver.map(range, size, 0, one, 0));
    GPU(driver.admit(range, size, &all, 1));
    fact(writing(size), "cost.writing.one_handle");
    GPU(driver.unmap(range, size));
    GPU(driver.release(one));
    for (int place = 0; place < BLOCK; place++)
        GPU(driver.map(at(place), unit, 0, units[place], 0));
    GPU(admit(0, BLOCK));
    fact(writing(size), "cost.writing.%d_units", BLOCK);
    fact(writing_beside(size, wait_a_little), "cost.writing.%d_units.beside_waiting", BLOCK);
    GPU(driver.create(&spare, unit, &properties, 0));
    fact(writing_beside(size, map_and_unmap), "cost.writing.%d_units.beside_mapping", BLOCK);
    GPU(driver.release(spare));
    for (int place = 0; place < BLOCK; place++)
        GPU(unmap(place, 1));
    int code = driver.create(&one, size, &host, 0);
    fact(code, "units.of_the_host");
    if (code)
        return;
    GPU(driver.map(range, size, 0, one, 0));
    fact(code = driver.admit(range, size, &all, 1), "units.of_the_host.access");
    if (!code)
        fact(writing(size), "cost.writing.of_the_host");
    GPU(driver.unmap(range, size));
    GPU(driver.release(one));
}

/* Half of the units hold a block that the device writes and reads without a pause;
 * the other half is mapped and unmapped meanwhile. */
static void beside_work(void) {
    const uint64_t words = BLOCK / 2 * unit / 4;
    gpu_stream stream = stream_of(NON_BLOCKING);
    uint64_t slowest = 0;
    uint32_t *copy = malloc(words * 4);
    long long wrong = 0;
    int code = 0;
    for (int place = 0; place < BLOCK / 2; place++)
        GPU(driver.map(at(place), unit, 0, units[place], 0));
    GPU(admit(0, BLOCK / 2));
    for (int round = 0; round < ROUNDS && !code; round++) {
        GPU(gpu_fill(stream, (void *)range, (uint32_t)round, words, 100000));
        int place = BLOCK / 2 + round % (BLOCK / 2);
        uint64_t begin = now_ns();
        code = driver.map(at(place), unit, 0, units[place], 0);
        code = code ? code : admit(place, 1);
        code = code ? code : unmap(place, 1);
        uint64_t took = now_ns() - begin;
        slowest = took > slowest ? took : slowest;
    }
    fact(code, "units.beside_work.code");
    fact(gpu_stream_sync(stream), "units.beside_work.kernels");
    GPU(gpu_copy_out(copy, (void *)range, words * 4));
    for (uint64_t i = 0; i < words; i++)
        wrong += copy[i] != ROUNDS - 1;
    fact(wrong, "units.beside_work.wrong_words");
    fact((long long)slowest, "cost.units.beside_work.slowest");
    free(copy);
    for (int place = 0; place < BLOCK / 2; place++)
        GPU(unmap(place, 1));
    drop_stream(NON_BLOCKING, stream);
}

/* What the driver says of an address in the second of four units. */
static void attributes(void) {
    static const struct { int number; const char *name; } asked[] = {
        {1, "context"},        {2, "memory_type"}, {9, "ordinal"},
        {10, "legacy_handle"}, {12, "range_size"}, {13, "mapped"},
        {15, "rdma"},          {18, "mapping_size"},
    };
    int (*ask)(void *, int, address) = find("cuPointerGetAttribute");
    for (int place = 0; place < 4; place++)
        GPU(driver.map(at(place), unit, 0, units[place], 0));
    GPU(admit(0, 4));
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        uint64_t value = 0;
        int code = ask(&value, asked[i].number, at(1) + 512);
        fact(code, "units.attribute.%s", asked[i].name);
        /* A context is an address, which nobody foretells. */
        if (!code)
            fact(asked[i].number == 1 ? value != 0 : (long long)value,
                 "units.attribute.%s.value", asked[i].name);
    }
    address start = 0;
    if (!ask(&start, 11, at(1) + 512))
        fact((long long)((start - range) / unit), "units.attribute.range_start.unit");
    for (int place = 0; place < 4; place++)
        GPU(unmap(place, 1));
}

/* So many of them at once. */
static void crowd(void) {
    int count = BLOCK;
    uint64_t begin = now_ns();
    while (count < MANY && !driver.create(&units[count], unit, &properties, 0))
        count++;
    fact(count, "units.created");
    fact((long long)(now_ns() - begin) / (count - BLOCK), "cost.unit.create.of_many");
    begin = now_ns();
    for (int place = 0; place < count; place++)
        GPU(driver.map(at(place), unit, 0, units[place], 0));
    fact((long long)(now_ns() - begin) / count, "cost.unit.map.of_many");
    begin = now_ns();
    GPU(admit(0, count));
    fact((long long)(now_ns() - begin) / count, "cost.unit.access.of_many");
    begin = now_ns();
    for (int place = 0; place < count; place++)
        GPU(unmap(place, 1));
    fact((long long)(now_ns() - begin) / count, "cost.unit.unmap.of_many");
    begin = now_ns();
    for (int place = BLOCK; place < count; place++)
        GPU(driver.release(units[place]));
    fact((long long)(now_ns() - begin) / (count - BLOCK), "cost.unit.release.of_many");
}

int main(void) {
    GPU(gpu_set_device(0));
    load_kernels();
    if (!has_virtual())
        return 0;
    GPU(driver.granularity(&unit, &properties, 1));
    GPU(driver.reserve(&range, MANY * unit, 0, 0, 0));
    for (int place = 0; place < BLOCK; place++)
        GPU(driver.create(&units[place], unit, &properties, 0));
    sizes();
    speeds();
    beside_work();
    attributes();
    crowd();
    for (int place = 0; place < BLOCK; place++)
        GPU(driver.release(units[place]));
    GPU(driver.unreserve(range, MANY * unit));
    return 0;
}
