/*
 * What a program asks by name about its memory: limits of single devices, peaks that
 * are begun anew, marks, and what the process is.
 */
#include "api.h"
#include "gpu.h"

static long long ask(const char *name, const char *value) {
    char answer[4096];
    API(api.ctl(name, value, answer, sizeof answer, NULL));
    return strcmp(answer, "none") ? atoll(answer) : -1;
}

static const char *text(const char *name) {
    static char answer[1 << 16];
    API(api.ctl(name, NULL, answer, sizeof answer, NULL));
    return answer;
}

static long long mib(const char *name, const char *value) {
    return ask(name, value) >> 20;
}

static void *get(size_t mib) {
    void *block = NULL;
    GPU(gpu_malloc(&block, mib << 20));
    return block;
}

/* Whether so much is to be had; it is given back. */
static int has(size_t mib) {
    void *block = NULL;
    if (gpu_malloc(&block, mib << 20) != 0)
        return 0;
    GPU(gpu_free(block));
    return 1;
}

/* A peak inside a peak, by the one register of the device. */
static void peaks(void) {
    void *first = get(100);
    GPU(gpu_free(first));
    printf("outer: the peak was %lld MiB\n", mib("device.0.live_peak", "reset"));
    void *kept = get(40);
    GPU(gpu_free(get(20)));
    char outer[32];
    API(api.ctl("device.0.live_peak", "reset", outer, sizeof outer, NULL));
    printf("inner: %lld MiB so far\n", atoll(outer) >> 20);
    GPU(gpu_free(get(10)));
    printf("inner: the peak is %lld MiB\n", mib("device.0.live_peak", NULL));
    ask("device.0.live_peak", outer);
    printf("outer: the peak is %lld MiB\n", mib("device.0.live_peak", NULL));
    GPU(gpu_free(kept));
    printf("reserved: the peak was %lld MiB\n", mib("device.0.reserved_peak", "reset"));
    ask("trim", NULL);
    ask("device.0.reserved_peak", "reset");
    printf("reserved: the peak is %lld MiB\n", mib("device.0.reserved_peak", NULL));
}

static void limits(void) {
    printf("the limit of 0: %lld\n", ask("device.0.limit", NULL));
    printf("set: %lld MiB\n", mib("device.0.limit", "64MiB"));
    printf("0 has 48: %d, has 80: %d\n", has(48), has(80));
    GPU(gpu_set_device(1));
    printf("1 has 80: %d\n", has(80));
    GPU(gpu_set_device(0));
    printf("the option: %s\n", text("option.device_limits"));
    ask("option.limit", "32MiB");
    printf("the option: %s\n", text("option.device_limits"));
    ask("device.1.limit", "16MiB");
    printf("of 1: %lld MiB, ", mib("device.1.limit", NULL));
    printf("without its own: %lld MiB\n", mib("device.1.limit", "none"));
    ask("option.limit", "none");
    printf("0 has 80: %d\n", has(80));
}

static void marks(void) {
    void *before = get(3);
    char name[64];
    long long mark = ask("mark", NULL);
    void *blocks[] = {get(5), get(7)};
    GPU(gpu_free(get(64)));
    snprintf(name, sizeof name, "mark.%lld.blocks", mark);
    printf("since the mark: %lld blocks, ", ask(name, NULL));
    snprintf(name, sizeof name, "mark.%lld.bytes", mark);
    printf("%lld MiB\n", ask(name, NULL) >> 20);
    snprintf(name, sizeof name, "mark.%lld.report", mark);
    const char *report = text(name);
    const char *begin = "{\"blocks\":2,\"bytes\":12582912,\"requested_bytes\":12582912";
    printf("told: %d, with a stack: %d\n", !strncmp(report, begin, strlen(begin)),
           strstr(report, "api_control") != NULL);
    GPU(gpu_free(blocks[0]));
    GPU(gpu_free(blocks[1]));
    GPU(gpu_free(before));
    printf("in the end: %lld\n", ask("mark", NULL) - mark);
    snprintf(name, sizeof name, "mark.%lld.end", mark);
    API(api.ctl(name, NULL, NULL, 0, NULL));
    EXPECT(VRAMALLOC_UNKNOWN_NAME, api.ctl(name, NULL, NULL, 0, NULL));
    /* Only the newest are kept. */
    for (int i = 0; i < 70; i++)
        mark = ask("mark", NULL);
    snprintf(name, sizeof name, "mark.%lld.blocks", mark - 64);
    EXPECT(VRAMALLOC_UNKNOWN_NAME, api.ctl(name, NULL, NULL, 0, NULL));
    snprintf(name, sizeof name, "mark.%lld.blocks", mark - 63);
    printf("of an old one: %lld\n", ask(name, NULL));
}

static void totals(void) {
    long long got = ask("device.0.allocations", NULL);
    long long given = ask("device.0.frees", NULL);
    long long asked = ask("device.0.requested", NULL);
    void *small = NULL;
    for (int i = 0; i < 1000; i++) {
        GPU(gpu_malloc(&small, 1000));
        GPU(gpu_free(small));
    }
    GPU(gpu_malloc(&small, 1000));
    printf("allocations: %lld, ", ask("device.0.allocations", NULL) - got);
    printf("frees: %lld, ", ask("device.0.frees", NULL) - given);
    printf("bytes: %lld\n", ask("device.0.requested", NULL) - asked);
    GPU(gpu_free(small));
}

int main(int count, char **words) {
    api_load();
    printf("before: %lld devices\n", ask("device.count", NULL));
    GPU(gpu_set_device(0));
    GPU(gpu_free(get(1)));
    printf("devices: %lld\n", ask("device.count", NULL));
    printf("preloaded: %lld\n", ask("preloaded", NULL));
    const char *path = text("library.path");
    printf("a library: %d\n", count > 1 && !strcmp(path, words[1]));
    peaks();
    limits();
    marks();
    totals();
    return 0;
}
