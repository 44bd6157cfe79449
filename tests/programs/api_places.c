/*
 * Places of the C API: devices that are current and that are not, before CUDA
 * was initialised, in threads of their own, after a reset; host memory; and a
 * forked child. `front` says that the library stands in front of CUDA, so that
 * memory of one may be freed by the other.
 *
 *   api_places front|late [refused]
 *
 * `refused`: the device refuses the first free of each sort.
 */
#include "gpu.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"

enum { SIZE = 300 * 1000 };

static char pattern[SIZE], seen[SIZE];

/* Whether the memory keeps what is written to it. */
static void use(void *device, char byte) {
    memset(pattern, byte, SIZE);
    memset(seen, 0, SIZE);
    GPU(gpu_copy_in(device, pattern, SIZE));
    GPU(gpu_copy_out(seen, device, SIZE));
    if (memcmp(pattern, seen, SIZE)) {
        fprintf(stderr, "memory changed\n");
        exit(1);
    }
}

/* `shared`: the program has a runtime that others can call. */
static void first_of_all(int shared) {
    void *device;
    EXPECT(shared ? 0 : 201, api.malloc(SIZE, VRAMALLOC_CURRENT_DEVICE, &device));
    if (shared)
        API(api.free(device));
    API(api.malloc(SIZE, 1, &device));
    API(api.free(device));
}

static void each_device(void) {
    void *here, *there, *again;
    API(api.malloc(SIZE, VRAMALLOC_CURRENT_DEVICE, &here));
    API(api.malloc(SIZE, 1, &there));
    /* Device 0 is current still. */
    API(api.malloc(SIZE, VRAMALLOC_CURRENT_DEVICE, &again));
    use(here, 2);
    use(again, 3);
    API(api.free(again));
    GPU(gpu_set_device(1));
    use(there, 4);
    API(api.free(here));
    GPU(gpu_set_device(0));
    API(api.free(there));
    EXPECT(101, api.malloc(SIZE, 7, &here));
}

static void host_memory(void) {
    void *pinned, *pageable, *device;
    API(api.malloc(SIZE, VRAMALLOC_PINNED, &pinned));
    API(api.malloc(SIZE, VRAMALLOC_PAGEABLE, &pageable));
    memset(pinned, 5, SIZE);
    memset(pageable, 5, SIZE);
    API(api.malloc(SIZE, 0, &device));
    GPU(gpu_copy_in(device, pinned, SIZE));
    GPU(gpu_copy_out(seen, device, SIZE));
    printf("host memory is alike: %d\n", !memcmp(pageable, seen, SIZE));
    API(api.free(device));
    API(api.free(pageable));
    API(api.free(pinned));
    EXPECT(VRAMALLOC_NOT_OURS, api.free(pinned));
    EXPECT(VRAMALLOC_NOT_OURS, api.free(pageable));
    EXPECT(VRAMALLOC_NOT_OURS, api.free(&device));
}

static void *thread(void *device) {
    void *memory;
    API(api.malloc(SIZE, 1, &memory));
    API(api.free(memory));
    API(api.free(device));
    return NULL;
}

static void a_thread_without_a_context(void) {
    pthread_t other;
    void *device;
    API(api.malloc(SIZE, 0, &device));
    if (pthread_create(&other, NULL, thread, device) ||
        pthread_join(other, NULL))
        exit(1);
}

static void a_free_under_a_kernel(void) {
    void *device, *next;
    API(api.malloc(SIZE, 0, &device));
    GPU(gpu_fill(NULL, device, 9, SIZE / 4, 3000000));
    API(api.free(device));
    /* The kernel goes on; whoever gets this memory must not see it write. */
    gpu_stream stream;
    GPU(gpu_stream_create(&stream));
    API(api.malloc(SIZE, 0, &next));
    GPU(gpu_fill(stream, next, 1, SIZE / 4, 0));
    GPU(gpu_sync());
    uint32_t word = 0;
    GPU(gpu_copy_out(&word, next, sizeof word));
    printf("a late kernel wrote: %d\n", word != 1);
    API(api.free(next));
    GPU(gpu_stream_destroy(stream));
}

/* Where the library does not stand in front, memory of CUDA is CUDA's. */
static void of_one_freed_by_the_other(int front) {
    void *device;
    GPU(gpu_malloc(&device, SIZE));
    EXPECT(front ? VRAMALLOC_SUCCESS : VRAMALLOC_NOT_OURS, api.free(device));
    if (!front) {
        GPU(gpu_free(device));
        return;
    }
    API(api.malloc(SIZE, 0, &device));
    GPU(gpu_free(device));
    EXPECT(VRAMALLOC_NOT_OURS, api.free(device));
}

/* What CUDA frees has left its scope: whoever has the address then keeps it.
 * A group's memory goes with the group. */
static void held_and_freed_by_cuda(void) {
    enum { MOST = 2000 };
    static void *passed[MOST];
    vramalloc_scope scope;
    vramalloc_group group;
    vramalloc_member members[2] = {{SIZE, "a.w", 0}, {SIZE, "b.w", 0}};
    void *held[3], *at[2];
    API(api.scope_begin(&scope));
    API(api.malloc(SIZE, 0, &held[0]));
    API(api.malloc_on_stream(SIZE, 0, NULL, &held[1]));
    API(api.malloc(SIZE, VRAMALLOC_PINNED, &held[2]));
    API(api.group_malloc(members, 2, 0, at, &group));
    for (int i = 0; i < 2; i++) {
        if (gpu_free(at[i]) != 1 || gpu_last_error() > 1)
            printf("a member was freed\n");
        EXPECT(VRAMALLOC_NOT_OURS, api.free(at[i]));
        use(at[i], 7);
    }
    GPU(gpu_free(held[0]));
    GPU(gpu_free(held[1]));
    GPU(gpu_free_host(held[2]));
    GPU(gpu_sync());
    int count = 0;
    do
        GPU(gpu_malloc(&passed[count], SIZE));
    while (passed[count++] != held[0] && count < MOST);
    printf("the address came again: %d\n", passed[count - 1] == held[0]);
    use(passed[count - 1], 8);
    API(api.scope_end(scope));
    EXPECT(VRAMALLOC_NOT_OURS, api.group_free(group));
    use(passed[count - 1], 9);
    while (count--)
        GPU(gpu_free(passed[count]));
}

/* A block that CUDA did not free is its scope's still. */
static void refused(int front) {
    vramalloc_scope scope;
    void *held[2];
    API(api.scope_begin(&scope));
    for (int i = 0; i < 2; i++)
        API(api.malloc(SIZE, 0, &held[i]));
    EXPECT(999, api.free(held[0]));
    if (front && gpu_free_async(held[1], NULL) != 999)
        printf("a free was not refused\n");
    use(held[0], 1);
    use(held[1], 2);
    API(api.scope_end(scope));
    for (int i = 0; i < 2; i++)
        EXPECT(VRAMALLOC_NOT_OURS, api.free(held[i]));
    /* As is the one that a group did not free, and the group its scope's. */
    vramalloc_member members[2] = {{SIZE, "a", 0}, {SIZE, "b", 1}};
    vramalloc_group group;
    void *at[2];
    API(api.scope_begin(&scope));
    API(api.group_malloc(members, 2, 0, at, &group));
    EXPECT(999, api.group_free(group));
    use(at[0], 3);
    EXPECT(VRAMALLOC_NOT_OURS, api.free(at[0]));
    API(api.scope_end(scope));
    EXPECT(VRAMALLOC_NOT_OURS, api.group_free(group));
}

static void a_child(void) {
    void *device, *pageable;
    API(api.malloc(SIZE, 0, &device));
    API(api.malloc(SIZE, VRAMALLOC_PAGEABLE, &pageable));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        void *more;
        EXPECT(VRAMALLOC_FORKED, api.malloc(SIZE, 0, &more));
        EXPECT(VRAMALLOC_FORKED, api.malloc(SIZE, VRAMALLOC_PAGEABLE, &more));
        EXPECT(VRAMALLOC_FORKED, api.free(device));
        EXPECT(VRAMALLOC_FORKED, api.free(pageable));
        EXPECT(VRAMALLOC_FORKED, api.empty_cache(0, NULL));
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status)
        exit(1);
    API(api.free(device));
    API(api.free(pageable));
}

static void after_a_reset(void) {
    void *device;
    vramalloc_scope scope;
    API(api.scope_begin(&scope));
    API(api.malloc(SIZE, 1, &device));
    GPU(gpu_set_device(1));
    GPU(gpu_reset());
    EXPECT(VRAMALLOC_NOT_OURS, api.free(device));
    /* The same address, and no scope's. */
    void *again;
    GPU(gpu_set_device(1));
    GPU(gpu_malloc(&again, SIZE));
    API(api.scope_end(scope));
    GPU(gpu_free(again));
    GPU(gpu_set_device(0));
    API(api.malloc(SIZE, 1, &device));
    GPU(gpu_set_device(1));
    use(device, 6);
    API(api.free(device));
    GPU(gpu_set_device(0));
}

int main(int count, char **arguments) {
    int front = count > 1 && !strcmp(arguments[1], "front");
    int shared = dlsym(RTLD_DEFAULT, "__cudaRegisterFatBinary") != NULL;
    uint64_t released = 1;
    api_load();
    if (count > 2 && !strcmp(arguments[2], "refused")) {
        GPU(gpu_set_device(0));
        refused(front);
        return 0;
    }
    API(api.empty_cache(0, &released));
    printf("released before all: %d\n", (int)released);
    first_of_all(shared);
    GPU(gpu_set_device(1));
    GPU(gpu_set_device(0));
    each_device();
    host_memory();
    a_thread_without_a_context();
    a_free_under_a_kernel();
    of_one_freed_by_the_other(front);
    if (front)
        held_and_freed_by_cuda();
    a_child();
    /* Where the library does not stand in front it hears of no reset. */
    if (front)
        after_a_reset();
    API(api.empty_cache(0, &released));
    printf("released at last: %s\n", released ? "some" : "none");
    return 0;
}
