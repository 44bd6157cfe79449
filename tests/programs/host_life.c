/*
 * Page-locked host memory at the beginnings and ends of things.
 *
 *   host_life contexts    its context is reset or destroyed, and made again
 *   host_life threads     other threads, with another device or none
 *   host_life fork        children that use it, or not
 *   host_life captures    allocated and freed while a stream captures
 *   host_life atexit      freed by an exit handler
 *   host_life destructor  freed by a destructor
 *   host_life short       the host has no more (it should have 256 MiB)
 *   host_life kinds       the same, asked for in one way after the other
 *   host_life ways        a large block in each of three ways
 *   host_life own         memory of its own is locked where others lay
 *   host_life little      one small block, and nothing else
 *   host_life refused     frees that fail (the driver should refuse the first)
 *   host_life watched     freed under a copy, and then nothing for a while
 *
 * A line that begins with "info" holds amounts.
 */
#include "gpu.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "find.h"

enum { BLOCKS = 12, PORTABLE = 1 };

static unsigned char *blocks[BLOCKS];
static int free_in_destructor;

static size_t size_of(int block) { return (size_t)3000 << block; }

static void fill(int value) {
    for (int i = 0; i < BLOCKS; i++) {
        GPU(gpu_host_alloc((void **)&blocks[i], size_of(i), PORTABLE));
        memset(blocks[i], value + i, size_of(i));
    }
}

/* Through the device and back, so that the driver has to know the memory. */
static int count_right(int value) {
    int right = 0;
    for (int i = 0; i < BLOCKS; i++) {
        size_t size = size_of(i);
        void *device;
        GPU(gpu_malloc(&device, size));
        GPU(gpu_copy_unified(device, blocks[i], size, NULL));
        GPU(gpu_sync());
        memset(blocks[i], 0, size);
        GPU(gpu_copy_unified(blocks[i], device, size, NULL));
        GPU(gpu_sync());
        GPU(gpu_free(device));
        right += gpu_is_all(blocks[i], value + i, size);
    }
    return right;
}

static void free_all(void) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i])
            gpu_free_host(blocks[i]);
}

/* Of contexts that are gone nothing must be left in the process. */
static void tell_mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int shared = 0;
    while (maps && fgets(line, sizeof line, maps))
        shared += strstr(line, "/dev/zero") != NULL;
    printf("info shared=%d\n", shared);
    if (maps)
        fclose(maps);
}

static void contexts(void) {
    int (*create)(void **, unsigned, int);
    int (*destroy)(void *);
    int (*set_current)(void *);
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&destroy = find("cuCtxDestroy_v2");
    *(void **)&set_current = find("cuCtxSetCurrent");
    for (int round = 1; round <= 4; round++) {
        GPU(gpu_set_device(0));
        fill(round);
        printf("round %d: %d right\n", round, count_right(round));
        for (int i = 0; i < BLOCKS; i += 2)
            GPU(gpu_free_host(blocks[i]));
        GPU(gpu_reset());
    }
    for (int round = 5; round <= 8; round++) {
        void *context;
        GPU(create(&context, 0, 0));
        fill(round);
        printf("round %d: %d right\n", round, count_right(round));
        for (int i = 1; i < BLOCKS; i += 2)
            GPU(gpu_free_host(blocks[i]));
        GPU(destroy(context));
        GPU(gpu_set_device(0));
        printf("freed after its context: %d, last error %d\n",
               gpu_free_host(blocks[0]), gpu_last_error());
    }
    /* A copy of another device's, from memory of a context that is reset. */
    gpu_stream stream;
    void *to;
    unsigned char *seen = malloc(size_of(8));
    GPU(gpu_set_device(0));
    fill(1);
    GPU(gpu_set_device(1));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&to, size_of(8)));
    GPU(gpu_spin(stream, 5000000));
    GPU(gpu_copy_unified(to, blocks[8], size_of(8), stream));
    GPU(gpu_set_device(0));
    GPU(gpu_free_host(blocks[8]));
    GPU(gpu_reset());
    GPU(gpu_set_device(1));
    GPU(gpu_stream_sync(stream));
    GPU(gpu_copy_out(seen, to, size_of(8)));
    printf("what another device copied: %d\n", seen[size_of(8) - 1]);
    free(seen);
    tell_mappings();
}

static void *free_the_rest(void *codes) {
    for (int i = 0; i < BLOCKS; i += 2)
        ((int *)codes)[i] = gpu_free_host(blocks[i]);
    return NULL;
}

static void *allocate_there(void *device) {
    GPU(gpu_set_device(*(int *)device));
    fill(40);
    return NULL;
}

static void in_thread(void *(*what)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, argument) ||
        pthread_join(thread, NULL))
        exit(1);
}

static void threads(void) {
    int codes[BLOCKS] = {0}, device = 1;
    GPU(gpu_set_device(0));
    fill(30);
    if (strcmp(GPU_KIND, "driver")) {
        in_thread(free_the_rest, codes);
        printf("freed without a device: %d\n", codes[0] | codes[2]);
    } else {
        free_the_rest(codes);
        printf("freed without a device: %d\n", codes[0] | codes[2]);
    }
    for (int i = 1; i < BLOCKS; i += 2)
        GPU(gpu_free_host(blocks[i]));
    in_thread(allocate_there, &device);
    printf("of device 1, used on device 0: %d right\n", count_right(40));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free_host(blocks[i]));
    fill(50);
    printf("of device 0: %d right\n", count_right(50));
    free_all();
}

static void try_child(const char *what, int uses) {
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        void *host = NULL;
        if (uses)
            _exit(gpu_free_host(blocks[0]) && gpu_malloc_host(&host, 100)
                      ? 0
                      : 3);
        exit(4);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        exit(1);
    printf("a child that %s: %d\n", what,
           WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static void forks(void) {
    GPU(gpu_set_device(0));
    fill(60);
    try_child("ends", 0);
    try_child("uses it", 1);
    printf("the parent's: %d right\n", count_right(60));
    free_all();
}

static void captures(void) {
    static const int modes[] = {GPU_CAPTURE_RELAXED, GPU_CAPTURE_RELAXED};
    gpu_stream stream;
    void *device;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&device, 4096));
    GPU(gpu_fill(stream, device, 0, 1, 0));
    for (int i = 0; i < 2; i++) {
        gpu_graph graph;
        void *executable, *again;
        uint32_t word = 0;
        fill(70);
        GPU(gpu_capture_begin(stream, modes[i]));
        GPU(gpu_fill(stream, device, 7 + (uint32_t)i, 1, 1000));
        for (int round = 0; round < 200; round++) {
            GPU(gpu_host_alloc(&again, size_of(round % BLOCKS), PORTABLE));
            GPU(gpu_free_host(again));
        }
        for (int block = 0; block < BLOCKS; block++)
            GPU(gpu_free_host(blocks[block]));
        GPU(gpu_capture_end(stream, &graph));
        GPU(gpu_graph_prepare(&executable, graph));
        GPU(gpu_graph_launch(executable, stream));
        GPU(gpu_stream_sync(stream));
        GPU(gpu_graph_destroy(executable));
        GPU(gpu_copy_out(&word, device, sizeof word));
        printf("the graph wrote %u\n", word);
    }
    GPU(gpu_free(device));
}

static void watched(void) {
    gpu_stream stream;
    void *device;
    GPU(gpu_set_device(0));
    fill(1);
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&device, size_of(3)));
    GPU(gpu_spin(stream, 100000));
    GPU(gpu_copy_unified(device, blocks[3], size_of(3), stream));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_free_host(blocks[i]));
    usleep(300000);
    GPU(gpu_free(device));
    printf("waited\n");
}

static void run_short(void) {
    enum { MOST = 4096 };
    static void *taken[MOST];
    void *large = NULL;
    int code = 0;
    GPU(gpu_set_device(0));
    for (int round = 0; round < 3; round++) {
        int count = 0;
        code = 0;
        while (!code && count < MOST) {
            code = gpu_malloc_host(&taken[count], (size_t)(2 - round % 2) << 19);
            count += !code;
        }
        printf("taken all there is: %d, last error %d\n", code,
               gpu_last_error());
        printf("info got=%d\n", count * (2 - round % 2) / 2);
        for (int i = 0; i < count; i++)
            GPU(gpu_free_host(taken[i]));
    }
    code = gpu_malloc_host(&large, (size_t)240 << 20);
    printf("most of it in one piece: %d, last error %d\n", code,
           gpu_last_error());
    if (!code)
        GPU(gpu_free_host(large));
}

/* What one way of asking has freed is there for all others. */
static void run_kinds(void) {
    enum { PLAIN = 2, WAYS = 6, MOST = 512 };
    static const int devices[WAYS] = {0, 0, 0, 1, 1, 0};
    static const unsigned flags[WAYS] = {1, 0, PLAIN, 1, PLAIN, 1};
    static void *taken[MOST];
    for (int way = 0; way < WAYS; way++) {
        int count = 0, code = 0;
        GPU(gpu_set_device(devices[way]));
        while (!code && count < MOST) {
            code = flags[way] == PLAIN
                       ? gpu_malloc_host(&taken[count], 3 << 20)
                       : gpu_host_alloc(&taken[count], 3 << 20, flags[way]);
            count += !code;
        }
        printf("taken all there is: %d, last error %d\n", code,
               gpu_last_error());
        printf("info got=%d\n", 3 * count);
        for (int i = 0; i < count; i++)
            GPU(gpu_free_host(taken[i]));
    }
}

static void run_ways(void) {
    void *block;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc_host(&block, 70 << 20));
    GPU(gpu_host_alloc(&block, 30 << 20, PORTABLE));
    GPU(gpu_host_alloc(&block, 130 << 20, 0));
}

static void run_own(void) {
    enum { PIECES = 200 };
    const size_t piece = (size_t)1 << 20, size = PIECES * piece;
    void *pinned[PIECES], *own = aligned_alloc(4096, size);
    GPU(gpu_set_device(0));
    for (int i = 0; i < PIECES; i++)
        GPU(gpu_malloc_host(&pinned[i], piece));
    for (int i = 0; i < PIECES; i++)
        GPU(gpu_free_host(pinned[i]));
    GPU(gpu_host_register(own, size));
    GPU(gpu_host_unregister(own));
    free(own);
}

/* The driver may refuse to take memory back: of two frees each says so. */
static void run_refused(void) {
    void *small, *large;
    GPU(gpu_set_device(0));
    GPU(gpu_host_alloc(&small, 5000, 0));
    GPU(gpu_host_alloc(&large, 100 << 20, 0));
    gpu_free_host(large);
    gpu_free_host(large);
    gpu_free_host(small);
    gpu_last_error();
    GPU(gpu_host_alloc(&large, 100 << 20, 0));
    GPU(gpu_free_host(large));
}

__attribute__((destructor)) static void at_unload(void) {
    if (free_in_destructor)
        free_all();
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    if (!strcmp(what, "contexts"))
        contexts();
    else if (!strcmp(what, "threads"))
        threads();
    else if (!strcmp(what, "fork"))
        forks();
    else if (!strcmp(what, "captures"))
        captures();
    else if (!strcmp(what, "short"))
        run_short();
    else if (!strcmp(what, "kinds"))
        run_kinds();
    else if (!strcmp(what, "ways"))
        run_ways();
    else if (!strcmp(what, "own"))
        run_own();
    else if (!strcmp(what, "refused"))
        run_refused();
    else if (!strcmp(what, "watched"))
        watched();
    else if (!strcmp(what, "little")) {
        GPU(gpu_set_device(0));
        GPU(gpu_malloc_host((void **)&blocks[0], 100));
        GPU(gpu_free_host(blocks[0]));
    } else {
        if (!strcmp(what, "atexit"))
            atexit(free_all);
        else if (strcmp(what, "destructor"))
            return 2;
        free_in_destructor = !strcmp(what, "destructor");
        GPU(gpu_set_device(0));
        fill(80);
    }
    return 0;
}
