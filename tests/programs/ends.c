/*
 * Ends of contexts that are not plain ones, and beginnings.
 *
 *   ends refused   the driver refuses to end a context with memory live
 *   ends counted   detached from while another user is attached
 *   ends shared    a primary context released that is retained elsewhere,
 *                  while another device is at work
 *   ends called    the driver calls back from inside the end, and the program
 *                  frees and allocates there
 *   ends crossed   a device reset while others allocate on it
 *   ends unmade    memory asked for where a primary context is current that
 *                  is not made
 *   ends fresh     a thread whose first call frees
 *   ends many N    so many contexts, one after the other
 *   ends taken     memory of a context that has just gone is another one's,
 *                  before the call that ended it returns
 *   ends undecided memory asked for while the driver refuses, slowly, to end
 *                  the context, again and again
 */
#include "gpu.h"

#include "find.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { BLOCKS = 96 };

typedef unsigned long long address;

static int (*create)(void **, unsigned, int);
static int (*destroy)(void *);
static int (*attach)(void **, unsigned);
static int (*detach)(void *);
static int (*get_current)(void **);
static int (*set_current)(void *);
static int (*retain)(void **, int);
static int (*release)(int);
static int (*allocate)(address *, size_t);
static int (*free_memory)(address);
static int (*get_table)(void *const **, const unsigned char *);

static void find_all(void) {
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    *(void **)&attach = find("cuCtxAttach");
    *(void **)&detach = find("cuCtxDetach");
    *(void **)&get_current = find("cuCtxGetCurrent");
    *(void **)&set_current = find("cuCtxSetCurrent");
    *(void **)&retain = find("cuDevicePrimaryCtxRetain");
    *(void **)&release = find("cuDevicePrimaryCtxRelease_v2");
    *(void **)&allocate = find("cuMemAlloc_v2");
    *(void **)&free_memory = find("cuMemFree_v2");
    *(void **)&get_table = find("cuGetExportTable");
}

static void *blocks[BLOCKS];

static void fill(uint32_t seed) {
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t word = seed + i;
        GPU(gpu_malloc(&blocks[i], 3000 + i * 100));
        GPU(gpu_copy_in(blocks[i], &word, sizeof word));
    }
}

/* How many of the blocks from the first on hold what they were given. */
static int count_right(int first, uint32_t seed) {
    int right = 0;
    for (int i = first; i < BLOCKS; i++) {
        uint32_t word = 0;
        GPU(gpu_copy_out(&word, blocks[i], sizeof word));
        right += word == seed + (uint32_t)i;
    }
    return right;
}

static void free_from(int first) {
    for (int i = first; i < BLOCKS; i++)
        GPU(gpu_free(blocks[i]));
}

/* The first block may begin a chunk: were it unknown, its free took all. */
static void still_alive(const char *after) {
    printf("%s: %d right\n", after, count_right(0, 100));
    GPU(gpu_free(blocks[0]));
    printf("without the first: %d right\n", count_right(1, 100));
    free_from(1);
    fill(200);
    printf("again: %d right\n", count_right(0, 200));
    free_from(0);
}

static void refused(void) {
    void *context;
    GPU(gpu_set_device(0));
    GPU(get_current(&context));
    fill(100);
    printf("destroy of a primary context: %d\n", destroy(context));
    still_alive("it is refused");
    fill(100);
    printf("detach from it: %d\n", detach(context));
    still_alive("so is this");
    GPU(create(&context, 0, 0));
    fill(100);
    /* The test has the driver refuse the first of each. */
    int first = destroy(context);
    if (first)
        still_alive("a fault");
    printf("destroy: %d\n", first ? destroy(context) : 0);
    GPU(gpu_set_device(0));
    fill(100);
    first = gpu_reset();
    if (first)
        still_alive("another");
    printf("reset: %d\n", first ? gpu_reset() : 0);
    GPU(gpu_set_device(0));
    fill(300);
    printf("and a new one: %d right\n", count_right(0, 300));
    free_from(0);
}

static void counted(void) {
    void *context, *same;
    GPU(create(&context, 0, 0));
    GPU(attach(&same, 0));
    fill(100);
    GPU(detach(context));
    still_alive("one user is left");
    fill(100);
    GPU(detach(context));
    void *now = context;
    GPU(get_current(&now));
    printf("no user is left, and it is current: %d\n", now == context);
    GPU(create(&context, 0, 0));
    fill(400);
    printf("and a new one: %d right\n", count_right(0, 400));
    GPU(destroy(context));
}

static void shared(void) {
    void *context, *kept;
    gpu_stream stream;
    gpu_event event;
    GPU(gpu_set_device(1));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_event_create(&event));
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&kept, 4096));
    fill(100);
    GPU(gpu_set_device(1));
    GPU(gpu_spin(stream, 2000000000));
    GPU(gpu_event_record(event, stream));
    GPU(gpu_set_device(0));
    free_from(0);
    GPU(retain(&context, 0));
    GPU(release(0));
    GPU(gpu_set_device(1));
    printf("device 1 is at work: %d\n", gpu_event_query(event));
    GPU(gpu_sync());
}

static int codes[4];

/* By the driver's own functions, as tools do. One free in two, so that the
 * chunks stay in use. */
static void called_back(void *context, void *key, void *value) {
    address got;
    (void)context, (void)key, (void)value;
    for (int i = 0; i < BLOCKS; i += 2)
        codes[0] |= free_memory((address)(uintptr_t)blocks[i]);
    codes[1] = allocate(&got, 100000);
    if (!codes[1])
        codes[2] = free_memory(got);
    codes[3] = allocate(&got, 5000000);
}

static void keep_a_value(void) {
    static const unsigned char storage[16] = {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21,
                                              0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3,
                                              0x55, 0xd8, 0x95, 0x93};
    static int key;
    void *const *table;
    GPU(get_table(&table, storage));
    int (*put)(void *, void *, void *, void (*)(void *, void *, void *));
    *(void *const **)&put = table[0];
    memset(codes, 0xff, sizeof codes);
    codes[0] = 0;
    GPU(put(NULL, &key, NULL, called_back));
}

static void tell(const char *end, int code) {
    printf("%s: %d; in it: frees %d, a block %d, its free %d, another %d\n",
           end, code, codes[0], codes[1], codes[2], codes[3]);
}

static void called(void) {
    void *context, *kept;
    for (uint32_t round = 1; round <= 3; round++) {
        GPU(gpu_set_device(0));
        fill(round * 1000);
        keep_a_value();
        tell("reset", gpu_reset());
        GPU(gpu_set_device(0));
        fill(round * 2000);
        printf("after it: %d right\n", count_right(0, round * 2000));
        free_from(0);
        GPU(create(&context, 0, 0));
        fill(round * 3000);
        keep_a_value();
        tell("destroy", destroy(context));
        GPU(retain(&context, 1));
        GPU(set_current(context));
        fill(round * 4000);
        keep_a_value();
        tell("release", release(1));
        GPU(retain(&context, 1));
        GPU(set_current(context));
        GPU(gpu_malloc(&kept, 1 << 20));
        fill(round * 5000);
        printf("after it: %d right\n", count_right(0, round * 5000));
        free_from(0);
        GPU(release(1));
    }
}

static atomic_int over;

/* Of another context's memory, at addresses that the reset gives up. */
static void *beside(void *nothing) {
    void *context, *mine[8];
    uint32_t round = 0, wrong = 0;
    GPU(create(&context, 0, 0));
    while (!over) {
        round++;
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t word = round * 8 + i;
            GPU(gpu_malloc(&mine[i], (size_t)1 << (12 + 2 * i)));
            GPU(gpu_copy_in(mine[i], &word, sizeof word));
        }
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t word = 0;
            GPU(gpu_copy_out(&word, mine[i], sizeof word));
            wrong += word != round * 8 + i;
            GPU(gpu_free(mine[i]));
        }
    }
    GPU(destroy(context));
    printf("beside it: %u wrong\n", wrong);
    return nothing;
}

static void crossed(void) {
    pthread_t thread;
    int right = 0;
    GPU(gpu_set_device(0));
    /* Whoever mixes contexts has memory of this one from here on. */
    fill(0);
    pthread_create(&thread, NULL, beside, NULL);
    for (uint32_t round = 1; round <= 30; round++) {
        GPU(gpu_set_device(0));
        fill(round * 100);
        right += count_right(0, round * 100);
        GPU(gpu_reset());
    }
    over = 1;
    pthread_join(thread, NULL);
    printf("all rounds: %d right\n", right);
}

static void unmade(void) {
    void *context, *block;
    GPU(gpu_set_device(0));
    GPU(get_current(&context));
    for (uint32_t round = 1; round <= 3; round++) {
        uint32_t word = round, read = 0;
        GPU(gpu_reset());
        GPU(set_current(context));
        int code = gpu_malloc(&block, 4096);
        printf("round %u: %d\n", round, code);
        if (code) {
            GPU(gpu_set_device(0));
            GPU(gpu_malloc(&block, 4096));
        }
        printf("written: %d\n", gpu_copy_in(block, &word, sizeof word));
        printf("read: %d, ", gpu_copy_out(&read, block, sizeof read));
        printf("right: %d\n", read == round);
        fill(round * 100);
        printf("%d right\n", count_right(0, round * 100));
    }
}

/* The release of a context, and what another thread does between the end and
 * the return. In a bare program it is after the return. */
enum { GONE = 48 };
static atomic_int ready, gone, done;
static __thread int watching;

static void await(atomic_int *what) {
    while (!*what)
        sched_yield();
}

/* The context is asked for by those who must know whether it is there. */
static void after_the_end(const char *name) {
    if (!watching || strcmp(name, "cuDevicePrimaryCtxGetState"))
        return;
    watching = 0;
    gone = 1;
    await(&done);
}

static int take_managed(void **to, size_t size) {
    int (*take)(void **, size_t, unsigned);
    *(void **)&take = find("cuMemAllocManaged");
    return take(to, size, 1);
}

static int take_in_order(void **to, size_t size) {
    return gpu_malloc_async(to, size, NULL);
}

static int give_in_order(void *block) { return gpu_free_async(block, NULL); }

/* Whether all of it can be freed that was taken at addresses of the other's. */
static void take_and_give(const char *what, int (*take)(void **, size_t),
                          int (*give)(void *)) {
    void *mine[GONE];
    int refused = 0, count = 0;
    /* Old drivers have no memory in the order of a stream. */
    while (count < GONE && !take(&mine[count], ((size_t)1 << 20) + 70000))
        count++;
    for (int i = 0; i < count; i++)
        refused += give(mine[i]) != 0;
    printf("%s: %d refused\n", what, refused);
}

static void *heir(void *context) {
    void *block;
    GPU(set_current(context));
    GPU(gpu_malloc(&block, 4096));
    ready = 1;
    await(&gone);
    take_and_give("managed", take_managed, gpu_free);
    take_and_give("in order", take_in_order, give_in_order);
    take_and_give("page-locked", gpu_malloc_host, gpu_free_host);
    take_and_give("device", gpu_malloc, gpu_free);
    done = 1;
    return NULL;
}

static void taken(void) {
    void *context, *other, *block;
    pthread_t thread;
    void (*watch)(void (*)(const char *));
    *(void **)&watch = find_if_there("sim_cuda_watch");
    GPU(create(&other, 0, 1));
    GPU(retain(&context, 1));
    GPU(set_current(context));
    for (int i = 0; i < GONE; i++) {
        GPU(gpu_malloc(&block, ((size_t)1 << 20) + 70000));
        GPU(gpu_malloc_host(&block, ((size_t)1 << 20) + 70000));
    }
    pthread_create(&thread, NULL, heir, other);
    if (watch)
        watch(after_the_end);
    await(&ready);
    watching = 1;
    GPU(release(1));
    watching = 0;
    gone = 1;
    pthread_join(thread, NULL);
}

static atomic_int asked;

/* How often the driver refused. */
static void *refuse(void *context) {
    static int times;
    while (!over) {
        asked++;
        times += destroy(context) != 0;
    }
    return &times;
}

static void await_another(void) {
    for (int before = asked; asked == before;)
        sched_yield();
}

static void undecided(void) {
    enum { REQUESTS = 10 };
    static void *held[REQUESTS];
    void *context, *times;
    pthread_t thread;
    size_t first, available, total;
    int changed = 0;
    GPU(gpu_set_device(0));
    GPU(gpu_mem_info(&available, &first));
    GPU(get_current(&context));
    pthread_create(&thread, NULL, refuse, context);
    for (int i = 0; i < REQUESTS; i++) {
        await_another();
        GPU(gpu_malloc(&held[i], (size_t)(1 + i) << 12));
        await_another();
        GPU(gpu_mem_info(&available, &total));
        changed += total != first;
    }
    await_another();
    for (int i = 0; i < REQUESTS; i++)
        GPU(gpu_free(held[i]));
    over = 1;
    pthread_join(thread, &times);
    printf("refused each time: %d, the device's size changed %d times\n",
           *(int *)times == asked, changed);
}

static void *free_first(void *block) {
    void *context = NULL;
    printf("free: %d\n", gpu_free(block));
    GPU(get_current(&context));
    printf("a context is current: %d\n", context != NULL);
    if (context)
        GPU(gpu_sync());
    return NULL;
}

static void fresh(void) {
    pthread_t thread;
    void *block;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, 4096));
    pthread_create(&thread, NULL, free_first, block);
    pthread_join(thread, NULL);
}

static size_t resident_kib(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*s %zu", &pages) != 1)
        exit(1);
    fclose(file);
    return pages * 4;
}

/* The first of them make what is made once. */
static void many(int count) {
    size_t before = 0;
    int right = 0;
    for (int i = 0; i < count; i++) {
        void *context, *block, *page;
        uint32_t word = (uint32_t)i, read = 0;
        if (i == count / 8)
            before = resident_kib();
        GPU(create(&context, 0, 0));
        GPU(gpu_malloc(&block, 4096));
        GPU(gpu_malloc_host(&page, 4096));
        GPU(gpu_copy_in(block, &word, sizeof word));
        GPU(gpu_copy_out(&read, block, sizeof read));
        right += read == word;
        if (i % 2)
            GPU(gpu_free(block));
        GPU(destroy(context));
    }
    size_t each = (resident_kib() - before) * 1024 / (size_t)(count - count / 8);
    printf("%d contexts, %d right, each for less than 30 KiB: %d\n", count,
           right, each < 30 << 10);
    if (getenv("ENDS_TELL"))
        fprintf(stderr, "%zu bytes each\n", each);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int devices = 0;
    GPU(gpu_count(&devices));
    find_all();
    if (!strcmp(what, "refused"))
        refused();
    else if (!strcmp(what, "counted"))
        counted();
    else if (!strcmp(what, "shared"))
        shared();
    else if (!strcmp(what, "called"))
        called();
    else if (!strcmp(what, "crossed"))
        crossed();
    else if (!strcmp(what, "unmade"))
        unmade();
    else if (!strcmp(what, "fresh"))
        fresh();
    else if (!strcmp(what, "taken"))
        taken();
    else if (!strcmp(what, "undecided"))
        undecided();
    else if (!strcmp(what, "many") && argc > 2)
        many(atoi(argv[2]));
    else
        return 2;
    return 0;
}
