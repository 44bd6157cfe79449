/*
 * Does what its arguments say, one after the other, and prints what comes of
 * it. Blocks are numbered from 0, in the order in which they were asked for.
 * With the argument "stdin" it reads them there, a line each, and prints a
 * line with a point when it has done one.
 *
 *   +SIZE  allocates so many bytes (with K, M or G after the number)
 *   vSIZE  allocates managed memory
 *   -N     frees block N
 *   aN     frees block N in the order of the stream that `w` works on
 *   ~N     lets another thread free block N in a tenth of a second
 *   bN     shows the first and the last byte of block N
 *   wNS    work of NS nanoseconds on a stream that orders with no other
 *   q      shows whether that work is done
 *   xNS    work on a stream that orders with the default one
 *   yNS    the same on another such stream, and shows whether it is done
 *   s      waits for the device
 *   oSIZE  takes memory in the order of the stream that `w` works on, and
 *          gives it back in that order
 *   dN     sets device N
 *   i      asks what is free
 *   I      the same, and shows it
 *   mMS    sleeps MS milliseconds
 *   c      begins a capture of the stream that `w` works on, or ends it
 *   f      forks a child that does nothing, and shows its id
 *   eFILE  becomes the program in this file
 */
#include "find.h"
#include "gpu.h"

#include <pthread.h>
#include <unistd.h>

enum { MOST = 4096 };

static struct {
    void *address;
    size_t size;
} blocks[MOST];
static int count;
static pthread_t threads[MOST];
static int started;

static size_t size_of(const char *text) {
    char *unit;
    size_t size = strtoull(text, &unit, 10);
    switch (*unit) {
    case 'G': size <<= 10; /* fall through */
    case 'M': size <<= 10; /* fall through */
    case 'K': size <<= 10;
    }
    return size;
}

static int malloc_managed(void **to, size_t size) {
    int (*take)(void **, size_t, unsigned) = find("cuMemAllocManaged");
    return take(to, size, 1);
}

static void allocate(int (*take)(void **, size_t), size_t size) {
    int code = take(&blocks[count].address, size);
    if (code) {
        gpu_last_error();
        blocks[count].address = NULL;
    }
    blocks[count].size = size;
    printf("%d: %d\n", count, code);
    count++;
}

static void take_in_order(gpu_stream on, size_t size) {
    void *block;
    GPU(gpu_malloc_async(&block, size, on));
    GPU(gpu_free_async(block, on));
}

static void *free_later(void *address) {
    GPU(gpu_set_device(0));
    usleep(100 * 1000);
    GPU(gpu_free(address));
    return NULL;
}

static void show(int n) {
    unsigned char first, last;
    const char *block = blocks[n].address;
    GPU(gpu_copy_out(&first, block, 1));
    GPU(gpu_copy_out(&last, block + blocks[n].size - 1, 1));
    printf("%d: %02x %02x\n", n, first, last);
}

/* Work that nothing stands before is done after some questions. */
static void work_on(gpu_stream stream, const char *ns) {
    gpu_event end;
    int left = 100;
    GPU(gpu_event_create(&end));
    GPU(gpu_spin(stream, strtoull(ns, NULL, 10)));
    GPU(gpu_event_record(end, stream));
    while (gpu_event_query(end) == GPU_NOT_READY && left > 0)
        left--;
    printf("work beside it: %d\n", gpu_event_query(end));
}

static gpu_stream stream, ordered[2];
static gpu_event event;

static void capture(void) {
    static int open;
    gpu_graph graph;
    if (open)
        printf("capture: %d\n", gpu_capture_end(stream, &graph));
    else
        GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
    open = !open;
}

static void fork_child(void) {
    int child = fork();
    if (!child)
        for (;;)
            pause();
    printf("child: %d\n", child);
}

/* Nothing if it cannot be read. */
static int do_step(const char *step) {
    const char *value = step + 1;
    size_t available, total;
    int n = atoi(value);
    switch (step[0]) {
    case '+': allocate(gpu_malloc, size_of(value)); break;
    case 'v': allocate(malloc_managed, size_of(value)); break;
    case '-': GPU(gpu_free(blocks[n].address)); break;
    case 'a': GPU(gpu_free_async(blocks[n].address, stream)); break;
    case '~':
        pthread_create(&threads[started++], NULL, free_later,
                       blocks[n].address);
        break;
    case 'b': show(n); break;
    case 'w':
        GPU(gpu_spin(stream, strtoull(value, NULL, 10)));
        GPU(gpu_event_record(event, stream));
        break;
    case 'x': GPU(gpu_spin(ordered[0], strtoull(value, NULL, 10))); break;
    case 'y': work_on(ordered[1], value); break;
    case 'q': printf("work: %d\n", gpu_event_query(event)); break;
    case 's': GPU(gpu_sync()); break;
    case 'o': take_in_order(stream, size_of(value)); break;
    case 'd': GPU(gpu_set_device(n)); break;
    case 'i': GPU(gpu_mem_info(&available, &total)); break;
    case 'I':
        GPU(gpu_mem_info(&available, &total));
        printf("free: %zu MiB of %zu\n", available >> 20, total >> 20);
        break;
    case 'm': usleep((unsigned)n * 1000); break;
    case 'c': capture(); break;
    case 'f': fork_child(); break;
    case 'e': execl(value, value, NULL); return 0;
    default: return 0;
    }
    return 1;
}

static int do_lines(void) {
    char line[256];
    while (count < MOST && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!do_step(line))
            return 0;
        printf(".\n");
        fflush(stdout);
    }
    return 1;
}

int main(int argc, char **argv) {
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    for (int i = 0; i < 2; i++)
        GPU(gpu_stream_create_blocking(&ordered[i]));
    GPU(gpu_event_create(&event));
    if (argc == 2 && !strcmp(argv[1], "stdin"))
        return do_lines() ? 0 : 2;
    for (int i = 1; i < argc && count < MOST; i++)
        if (!do_step(argv[i]))
            return 2;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
