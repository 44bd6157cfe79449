/*
 * Shares device memory with another process.
 *
 *   ipc share      several blocks, there and back, opened twice, closed in any
 *                  order, by several threads
 *   ipc ranges     handles of addresses inside blocks, with the distance from
 *                  where the driver says that the allocation begins
 *   ipc freed      the blocks are freed before the other process opens them
 *   ipc dropped    the same, by a process that has another user by then
 *   ipc reset      the same, by a reset of the device
 *   ipc crash      the exporting process is killed
 *   ipc own        the exporting process opens its own handles
 *   ipc garbage    handles that nobody made
 *
 * The other process is this program once more, with LD_PRELOAD as
 * IPC_PEER_PRELOAD has it; both use the device IPC_DEVICE. The shell command
 * IPC_BETWEEN, if any, is run when all handles are made and none is open. With
 * IPC_NO_FILES no file may be written while handles are made; with "dropped",
 * while blocks are freed. One line says what became of the blocks; bytes of
 * anything but the block that was meant are "wrong", and the program ends
 * with 1.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 9, THREADS = 4, ROUNDS = 60, RANGE_START = 11, NOBODY = 65534 };

/* Small ones that can share a slab, large ones that can share a chunk. */
static const size_t sizes[BLOCKS] = {1000,    4096,    512,     300 << 10, 8192,
                                     3 << 20, 5 << 20, 2 << 20, 1 << 20};

/* What one process tells the other of a block. */
struct offer {
    int made;
    gpu_ipc_handle handle;
    size_t distance; /* from where the handle opens to the block */
    size_t words;
    uint32_t value;
};

static struct { int handles, failed, opened, refused, wrong; } count;

static void *symbol(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "the driver lacks %s\n", name);
        exit(1);
    }
    return found;
}

/* Where the driver says that the allocation around an address begins; asked in
 * both ways, which have to agree. */
static uint64_t range_start(uint64_t at, size_t *size) {
    int (*range)(uint64_t *, size_t *, uint64_t);
    int (*attribute)(void *, int, uint64_t);
    int (*attributes)(unsigned, int *, void **, uint64_t);
    uint64_t start = 0, same = 0, again = 0;
    size_t length = 0;
    int asked[] = {RANGE_START + 1, RANGE_START};
    void *to[] = {&length, &again};
    range = symbol("cuMemGetAddressRange_v2");
    attribute = symbol("cuPointerGetAttribute");
    attributes = symbol("cuPointerGetAttributes");
    GPU(range(&start, size, at));
    GPU(attribute(&same, RANGE_START, at));
    GPU(attributes(2, asked, to, at));
    if (start != same || start != again || *size != length) {
        fprintf(stderr, "the driver contradicts itself\n");
        exit(1);
    }
    return start;
}

static void say(int to, const void *what, size_t size) {
    if (write(to, what, size) != (ssize_t)size) {
        fprintf(stderr, "the other process is gone\n");
        exit(1);
    }
}

static void hear(int from, void *what, size_t size) {
    char *at = what;
    while (size > 0) {
        ssize_t got = read(from, at, size);
        if (got <= 0) {
            fprintf(stderr, "the other process is gone\n");
            exit(1);
        }
        at += got;
        size -= (size_t)got;
    }
}

/* Whether the block holds nothing but the value. */
static int holds(const void *block, uint32_t value, size_t words) {
    uint32_t *copy = malloc(words * 4);
    int same = copy && gpu_copy_out(copy, block, words * 4) == 0;
    for (size_t i = 0; same && i < words; i++)
        same = copy[i] == value;
    free(copy);
    return same;
}

static void fill_with(void *block, uint32_t value, size_t words) {
    uint32_t *copy = malloc(words * 4);
    for (size_t i = 0; i < words; i++)
        copy[i] = value;
    GPU(gpu_copy_in(block, copy, words * 4));
    free(copy);
}

static int device(void) {
    const char *number = getenv("IPC_DEVICE");
    return number ? atoi(number) : 0;
}

static uint32_t value_of(int i) { return 0x01010101u * (uint32_t)(i + 1); }

/* Opens; with IPC_OLD by the name that the driver had for it before CUDA 11. */
static int open_handle(char **open, gpu_ipc_handle handle) {
    if (!getenv("IPC_OLD"))
        return gpu_ipc_open((void **)open, handle);
    int (*old)(char **, gpu_ipc_handle, unsigned) = symbol("cuIpcOpenMemHandle");
    return old(open, handle, 1);
}

/* ---- the process that opens ---------------------------------------- */

struct visit {
    const struct offer *offers;
    unsigned seed;
    int wrong;
};

/* Opens, looks and closes, while others do the same. */
static void *visit(void *argument) {
    struct visit *v = argument;
    gpu_set_device(device());
    for (int round = 0; round < ROUNDS; round++) {
        const struct offer *o = &v->offers[rand_r(&v->seed) % 5];
        char *base;
        if (!o->made || open_handle(&base, o->handle))
            continue;
        if (!holds(base + o->distance, ~o->value, o->words) ||
            gpu_ipc_close(base))
            v->wrong++;
    }
    return NULL;
}

static void visit_by_threads(const struct offer *offers) {
    pthread_t threads[THREADS];
    struct visit visits[THREADS];
    for (int i = 0; i < THREADS; i++) {
        visits[i] = (struct visit){offers, (unsigned)i + 1, 0};
        if (pthread_create(&threads[i], NULL, visit, &visits[i]))
            exit(1);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        count.wrong += visits[i].wrong;
    }
}

static void open_all(const struct offer *offers, char **open) {
    for (int i = 0; i < BLOCKS; i++) {
        const struct offer *o = &offers[i];
        open[i] = NULL;
        if (!o->made)
            continue;
        if (open_handle(&open[i], o->handle)) {
            open[i] = NULL;
            gpu_last_error();
            count.refused++;
            continue;
        }
        count.opened++;
        if (!holds(open[i] + o->distance, o->value, o->words))
            count.wrong++;
    }
}

/* Opens each once more: that is the same place, and one close leaves it. */
static void open_twice(const struct offer *offers, char **open) {
    for (int i = 0; i < BLOCKS; i++) {
        char *again = NULL;
        if (!open[i])
            continue;
        GPU(open_handle(&again, offers[i].handle));
        GPU(gpu_ipc_close(again));
        if (again != open[i] ||
            !holds(open[i] + offers[i].distance, offers[i].value,
                   offers[i].words))
            count.wrong++;
    }
}

/* Writes back through each, and closes them in an order of its own, looking
 * at those that are left. */
static void answer_and_close(const struct offer *offers, char **open) {
    for (int i = 0; i < BLOCKS; i++)
        if (open[i])
            fill_with(open[i] + offers[i].distance, ~offers[i].value,
                      offers[i].words);
    visit_by_threads(offers);
    for (int k = 0; k < BLOCKS; k++) {
        int i = (k * 5 + 3) % BLOCKS;
        if (!open[i])
            continue;
        GPU(gpu_ipc_close(open[i]));
        open[i] = NULL;
        for (int j = 0; j < BLOCKS; j++)
            if (open[j] && !holds(open[j] + offers[j].distance,
                                  ~offers[j].value, offers[j].words))
                count.wrong++;
    }
}

static int receive(int from, int to) {
    struct offer offers[BLOCKS];
    char *open[BLOCKS], ready = 0;
    GPU(gpu_set_device(device()));
    hear(from, offers, sizeof offers);
    open_all(offers, open);
    for (int i = 0; i < BLOCKS; i++) {
        size_t size;
        if (!open[i] || offers[i].distance == 0)
            continue;
        /* What was opened has a beginning of its own. */
        uint64_t at = (uint64_t)(uintptr_t)open[i];
        if (range_start(at + offers[i].distance, &size) != at)
            count.wrong++;
    }
    open_twice(offers, open);
    answer_and_close(offers, open);
    say(to, &count, sizeof count);
    /* What is closed can be opened again. */
    hear(from, &ready, 1);
    memset(&count, 0, sizeof count);
    for (int i = 0; i < BLOCKS; i++)
        offers[i].value = ~offers[i].value;
    open_all(offers, open);
    say(to, &count, sizeof count);
    return 0;
}

/* ---- the process that shares --------------------------------------- */

static pid_t peer;
static int to_peer, from_peer;

/* Starts the other process, before this one has touched CUDA. */
static void start_peer(char **argv) {
    int there[2], back[2];
    const char *preload = getenv("IPC_PEER_PRELOAD");
    if (pipe(there) || pipe(back))
        exit(1);
    peer = fork();
    if (peer == 0) {
        char from[16], to[16];
        char *arguments[] = {argv[0], "receive", from, to, NULL};
        snprintf(from, sizeof from, "%d", there[0]);
        snprintf(to, sizeof to, "%d", back[1]);
        if (preload)
            setenv("LD_PRELOAD", preload, 1);
        unsetenv("SIM_CUDA_REPORT");
        close(there[1]);
        close(back[0]);
        execv("/proc/self/exe", arguments);
        _exit(127);
    }
    close(there[0]);
    close(back[1]);
    to_peer = there[1];
    from_peer = back[0];
}

static void make_offers(struct offer *offers, void **blocks, int inside) {
    memset(offers, 0, BLOCKS * sizeof *offers);
    for (int i = 0; i < BLOCKS; i++) {
        struct offer *o = &offers[i];
        gpu_ipc_handle same;
        char *at = blocks[i];
        o->value = value_of(i);
        o->words = sizes[i] / 4;
        if (inside) {
            size_t size;
            at += 128;
            uint64_t where = (uint64_t)(uintptr_t)at;
            o->distance = where - range_start(where, &size);
            o->words -= 32;
        }
        if (gpu_ipc_get(&o->handle, at)) {
            gpu_last_error();
            count.failed++;
            continue;
        }
        o->made = 1;
        count.handles++;
        /* All of a block has one handle. */
        GPU(gpu_ipc_get(&same, (char *)blocks[i] + sizes[i] / 2));
        if (memcmp(&same, &o->handle, sizeof same))
            count.wrong++;
    }
}

static void report(const char *when) {
    printf("%shandles %d failed %d opened %d refused %d wrong %d\n", when,
           count.handles, count.failed, count.opened, count.refused,
           count.wrong);
    fflush(stdout);
}

/* What the other process found, on top of what this one did. */
static void hear_count(void) {
    typeof(count) theirs;
    hear(from_peer, &theirs, sizeof theirs);
    count.opened += theirs.opened;
    count.refused += theirs.refused;
    count.wrong += theirs.wrong;
}

static void allow_files(int allowed) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = allowed || !getenv("IPC_NO_FILES") ? limit.rlim_max : 0;
    setrlimit(RLIMIT_FSIZE, &limit);
}

static int share(const char *how) {
    struct offer offers[BLOCKS];
    void *blocks[BLOCKS];
    const char *between = getenv("IPC_BETWEEN");
    int opened, status, dropped = !strcmp(how, "dropped");
    GPU(gpu_set_device(device()));
    for (int i = 0; i < BLOCKS; i++) {
        GPU(gpu_malloc(&blocks[i], sizes[i]));
        fill_with(blocks[i], value_of(i), sizes[i] / 4);
    }
    allow_files(dropped);
    make_offers(offers, blocks, !strcmp(how, "ranges"));
    allow_files(1);
    if (between && system(between))
        return 1;
    if (dropped && setuid(NOBODY)) {
        perror("setuid");
        return 1;
    }
    allow_files(0);
    if (!strcmp(how, "freed") || dropped)
        for (int i = 0; i < BLOCKS; i++)
            GPU(gpu_free(blocks[i]));
    allow_files(1);
    if (!strcmp(how, "reset"))
        GPU(gpu_reset());
    say(to_peer, offers, sizeof offers);
    hear_count();
    if (!strcmp(how, "crash")) {
        report("");
        kill(getpid(), SIGKILL);
    }
    opened = count.opened;
    for (int i = 0; i < BLOCKS && opened == BLOCKS; i++)
        if (!holds((char *)blocks[i] + sizes[i] - offers[i].words * 4,
                   ~value_of(i), offers[i].words))
            count.wrong++;
    say(to_peer, "", 1);
    hear_count();
    if (count.opened != 2 * opened)
        count.wrong++;
    report("");
    if (waitpid(peer, &status, 0) != peer || status)
        return 1;
    return count.wrong != 0;
}

static int open_own(void) {
    struct offer offers[BLOCKS];
    void *blocks[BLOCKS], *open;
    GPU(gpu_set_device(device()));
    for (int i = 0; i < BLOCKS; i++)
        GPU(gpu_malloc(&blocks[i], sizes[i]));
    make_offers(offers, blocks, 0);
    for (int i = 0; i < BLOCKS; i++)
        if (gpu_ipc_open(&open, offers[i].handle))
            count.refused++;
        else
            count.opened++;
    report("");
    return count.wrong != 0;
}

static int open_garbage(void) {
    gpu_ipc_handle handle;
    void *open = NULL, *block;
    unsigned seed = 1;
    GPU(gpu_set_device(device()));
    GPU(gpu_malloc(&block, 4096));
    for (int i = 0; i < 64; i++) {
        for (size_t k = 0; k < sizeof handle; k++)
            handle.bytes[k] = i ? (char)rand_r(&seed) : 0;
        if (i % 2)
            memcpy(handle.bytes, "vramalloc-ipc-v1", 16);
        if (i % 4 == 3)
            memset(handle.bytes + 48, 0, 16);
        if (gpu_ipc_open(&open, handle) == 0)
            count.opened++;
        else
            count.refused++;
        if (open || gpu_ipc_close((char *)block + i) == 0)
            count.wrong++;
    }
    gpu_last_error();
    report("");
    return count.wrong != 0;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "receive") && argc == 4)
        return receive(atoi(argv[2]), atoi(argv[3]));
    if (!strcmp(how, "own"))
        return open_own();
    if (!strcmp(how, "garbage"))
        return open_garbage();
    for (const char *known = "share ranges freed dropped reset crash"; *known;) {
        size_t length = strcspn(known, " ");
        if (strlen(how) == length && !strncmp(how, known, length)) {
            start_peer(argv);
            return share(how);
        }
        known += length + (known[length] == ' ');
    }
    fprintf(stderr, "usage: ipc share|ranges|freed|dropped|reset|crash|own|garbage\n");
    return 2;
}
