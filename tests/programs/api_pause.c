/*
 * Pause and resume by the C API: a program with graphs, peers, live blocks and some
 * that were freed while work uses them.
 *
 *   api_pause cycles COUNT  that many pauses and resumes of everything
 *   api_pause tags          regions that are paused apart from each other
 *   api_pause regions       memory in regions and outside, and no pause
 *   api_pause refusals      what cannot be, and what is refused meanwhile
 *   api_pause reset         the device is reset while its memory is paused
 *   api_pause together      several tags at once, also where a call of CUDA fails
 *   api_pause captures      another thread captures graphs meanwhile
 *   api_pause unused        a device that was never used
 *   api_pause left COMMAND  the program runs the command, and ends, while its memory is
 *                           paused
 */
#include "gpu.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "api.h"

enum { BLOCKS = 24, LONG = 3 * 1000 * 1000, WORDS = 1 << 18 };

static void *blocks[BLOCKS];
static size_t sizes[BLOCKS];

static size_t size_of(int block) {
    static const size_t some[] = {300, 5000, 70000, 300000, 600000, 2 << 20};
    return some[block % 6] + 512 * (size_t)block;
}

static size_t available(void) {
    size_t bytes, total;
    GPU(gpu_mem_info(&bytes, &total));
    return bytes;
}

/* Word `at` of a block. */
static uint32_t word_of(int block, size_t at) {
    return (uint32_t)at * 2654435761u + (uint32_t)block;
}

static void fill(int block) {
    uint32_t *words = malloc(sizes[block]);
    for (size_t at = 0; at < sizes[block] / 4; at++)
        words[at] = word_of(block, at);
    /* The call that a test lets fail may be this one. */
    if (gpu_copy_in(blocks[block], words, sizes[block]))
        GPU(gpu_copy_in(blocks[block], words, sizes[block]));
    free(words);
}

static void take(int block) {
    sizes[block] = size_of(block);
    GPU(gpu_malloc(&blocks[block], sizes[block]));
    fill(block);
}

static int holds(int block) {
    uint32_t *words = malloc(sizes[block]);
    if (gpu_copy_out(words, blocks[block], sizes[block]))
        GPU(gpu_copy_out(words, blocks[block], sizes[block]));
    uint32_t other = 0;
    for (size_t at = 0; at < sizes[block] / 4; at++)
        other |= words[at] ^ word_of(block, at);
    free(words);
    return !other;
}

static int holding(int from, int to) {
    int held = 0;
    for (int block = from; block < to; block++)
        held += holds(block);
    return held;
}

static vramalloc_paused paused(const char *tag) {
    vramalloc_paused answer = {.struct_size = sizeof answer};
    API(api.pause(VRAMALLOC_CURRENT_DEVICE, tag, &answer));
    if (!answer.is_paused)
        printf("it is not paused\n");
    return answer;
}

static vramalloc_paused resumed(const char *tag) {
    vramalloc_paused answer = {.struct_size = sizeof answer};
    API(api.resume(VRAMALLOC_CURRENT_DEVICE, tag, 0, &answer));
    if (answer.is_paused)
        printf("it is still paused\n");
    return answer;
}

/* Whether the graph writes its value to the block. */
static int graph_writes(void *graph, gpu_stream stream, void *block) {
    uint32_t word;
    GPU(gpu_set(block, 0, 4 * WORDS));
    GPU(gpu_sync());
    GPU(gpu_graph_launch(graph, stream));
    GPU(gpu_stream_sync(stream));
    GPU(gpu_copy_out(&word, (char *)block + 4 * (WORDS - 1), 4));
    return word == 77;
}

/* Whether another device writes to a block; where there is one, it has a stream. */
static int peer_writes(gpu_stream theirs) {
    unsigned char byte;
    if (!theirs)
        return 1;
    GPU(gpu_set_device(1));
    GPU(gpu_set_async(blocks[5], 9, 1000, theirs));
    GPU(gpu_stream_sync(theirs));
    GPU(gpu_set_device(0));
    GPU(gpu_copy_out(&byte, (char *)blocks[5] + 999, 1));
    fill(5);
    return byte == 9;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void cycles(int count) {
    gpu_stream stream, theirs = NULL;
    int devices;
    GPU(gpu_count(&devices));
    gpu_graph captured;
    void *graph, *drawn;
    GPU(gpu_stream_create(&stream));
    size_t before = available();
    for (int block = 0; block < BLOCKS; block++)
        take(block);
    GPU(gpu_malloc(&drawn, 4 * WORDS));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_GLOBAL));
    GPU(gpu_fill(stream, drawn, 77, WORDS, 1000));
    GPU(gpu_capture_end(stream, &captured));
    GPU(gpu_graph_prepare(&graph, captured));
    if (devices > 1) {
        GPU(gpu_set_device(1));
        GPU(gpu_stream_create(&theirs));
        GPU(gpu_enable_peer(0));
        GPU(gpu_set_device(0));
    }
    int wrote = graph_writes(graph, stream, drawn) && peer_writes(theirs);
    printf("before: %d\n", wrote);
    int good = 0;
    size_t least = (size_t)-1, held = 0;
    uint64_t first = 0, last = 0;
    for (int cycle = 0; cycle < count; cycle++) {
        int changes = cycle % BLOCKS;
        void *brief;
        GPU(gpu_malloc(&brief, 2 << 20));
        GPU(gpu_fill(stream, brief, 3, WORDS, LONG));
        GPU(gpu_free(brief));
        GPU(gpu_free(blocks[changes]));
        take(changes);
        GPU(gpu_graph_launch(graph, stream));
        vramalloc_paused gone = paused(NULL);
        size_t now_available = available();
        least = now_available < least ? now_available : least;
        held += gone.stays_plain + gone.stays_exported + gone.stays_refused;
        uint64_t start = now();
        vramalloc_paused back = resumed(NULL);
        uint64_t took = now() - start;
        first = cycle == 0 ? took : first;
        last = took;
        int all = holding(changes, changes + 1) && back.copied == gone.copied;
        if (cycle % 50 == 0 || cycle == count - 1)
            all = all && holding(0, BLOCKS) == BLOCKS &&
                  graph_writes(graph, stream, drawn) && peer_writes(theirs);
        good += all;
    }
    printf("good cycles: %d, stayed: %zu, missing while paused: %zu\n", good, held,
           least < before ? before - least : 0);
    fprintf(stderr, "%s", first && last ? "" : "the clock stands\n");
    for (int block = 0; block < BLOCKS; block++)
        GPU(gpu_free(blocks[block]));
    GPU(gpu_free(drawn));
    GPU(gpu_sync());
    GPU(gpu_graph_destroy(graph));
    API(api.resume(VRAMALLOC_CURRENT_DEVICE, NULL, VRAMALLOC_DROP_BACKUPS, NULL));
    uint64_t released;
    API(api.empty_cache(VRAMALLOC_CURRENT_DEVICE, &released));
    printf("missing in the end: %zu\n", before - available());
}

static void begin(const char *tag, int contents) {
    API(api.region_begin(tag, contents));
}

static void tags(void) {
    begin("weights", VRAMALLOC_KEEP);
    for (int block = 0; block < 8; block++)
        take(block);
    begin("cache", VRAMALLOC_DROP);
    for (int block = 8; block < 16; block++)
        take(block);
    API(api.region_end());
    void *member;
    API(api.malloc(5000, VRAMALLOC_CURRENT_DEVICE, &member));
    API(api.region_end());
    for (int block = 16; block < BLOCKS; block++)
        take(block);
    vramalloc_paused gone = paused("cache");
    printf("cache: copied %llu, others hold: %d\n", (unsigned long long)gone.copied,
           holding(0, 8) + holding(16, BLOCKS));
    gone = paused("weights");
    printf("weights: copied some: %d, others hold: %d\n", gone.copied > 0,
           holding(16, BLOCKS));
    void *block;
    GPU(gpu_malloc(&block, 1 << 20));
    GPU(gpu_free(block));
    begin("weights", VRAMALLOC_KEEP);
    int refused = gpu_malloc(&block, 1 << 20);
    gpu_last_error();
    EXPECT(VRAMALLOC_INVALID_STATE, api.malloc(1 << 20, VRAMALLOC_CURRENT_DEVICE, &block));
    API(api.region_end());
    printf("refused: %d\n", refused);
    resumed("weights");
    gone = paused("");
    printf("untagged: copied some: %d, weights hold: %d\n", gone.copied > 0,
           holding(0, 8));
    gone = resumed(NULL);
    printf("all hold: %d\n", holding(0, 8) + holding(16, BLOCKS));
    gone = paused("unheard");
    printf("unheard: %llu\n", (unsigned long long)gone.bytes);
}

static void refusals(void) {
    gpu_stream stream;
    gpu_graph graph;
    vramalloc_paused answer = {.struct_size = 3};
    int here = VRAMALLOC_CURRENT_DEVICE;
    for (int block = 0; block < BLOCKS; block++)
        take(block);
    GPU(gpu_stream_create(&stream));
    EXPECT(VRAMALLOC_INVALID_ARGUMENT, api.pause(here, NULL, &answer));
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_GLOBAL));
    EXPECT(900, api.pause(here, NULL, NULL));
    GPU(gpu_capture_end(stream, &graph));
    paused(NULL);
    GPU(gpu_capture_begin(stream, GPU_CAPTURE_GLOBAL));
    EXPECT(900, api.resume(here, NULL, 0, NULL));
    GPU(gpu_capture_end(stream, &graph));
    void *block;
    int refused = gpu_malloc(&block, 300);
    gpu_last_error();
    EXPECT(VRAMALLOC_INVALID_STATE, api.malloc(300, here, &block));
    API(api.pause(here, NULL, NULL));
    GPU(gpu_free(blocks[3]));
    API(api.free(blocks[4]));
    EXPECT(VRAMALLOC_NOT_OURS, api.free(blocks[4]));
    resumed(NULL);
    API(api.resume(here, NULL, 0, NULL));
    GPU(gpu_malloc(&block, 300));
    printf("refused: %d, hold: %d\n", refused, holding(0, 3) + holding(5, BLOCKS));
}

static void reset(void) {
    size_t before = available();
    for (int block = 0; block < BLOCKS; block++)
        take(block);
    paused(NULL);
    GPU(gpu_reset());
    GPU(gpu_set_device(0));
    for (int block = 0; block < BLOCKS; block++)
        take(block);
    printf("hold: %d\n", holding(0, BLOCKS));
    paused(NULL);
    GPU(gpu_reset());
    GPU(gpu_set_device(0));
    printf("missing in the end: %zu\n", before - available());
}

enum { TAGS = 3, EACH = 4 };
static const char *const tag_names[TAGS] = {"dropped", "weights", "state"};

/* Each tag's turn to take a block, a capture's, and then each block's to be freed. */
static void regions(void) {
    gpu_stream stream;
    gpu_graph graph;
    void *captured;
    GPU(gpu_stream_create(&stream));
    for (int turn = 0; turn < 5; turn++) {
        for (int block = 0; block < BLOCKS; block++) {
            int tag = block % (TAGS + 1);
            if (tag < TAGS)
                begin(tag_names[tag], VRAMALLOC_KEEP);
            take(block);
            if (tag < TAGS)
                API(api.region_end());
        }
        GPU(gpu_capture_begin(stream, GPU_CAPTURE_RELAXED));
        GPU(gpu_malloc(&captured, (15 + turn) << 20));
        GPU(gpu_capture_end(stream, &graph));
        GPU(gpu_free(captured));
        for (int block = 0; block < BLOCKS; block++)
            GPU(gpu_free(blocks[block]));
    }
}

/* How many of the tags, and of what has none, are paused. */
static int count_paused(void) {
    int count = 0;
    for (int tag = 0; tag <= TAGS; tag++) {
        void *block;
        if (tag < TAGS)
            begin(tag_names[tag], tag ? VRAMALLOC_KEEP : VRAMALLOC_DROP);
        int refused = api.malloc(600, VRAMALLOC_CURRENT_DEVICE, &block);
        if (!refused)
            API(api.free(block));
        count += refused == VRAMALLOC_INVALID_STATE;
        if (tag < TAGS)
            API(api.region_end());
    }
    return count;
}

static void together(void) {
    enum { ROUNDS = 4 };
    int here = VRAMALLOC_CURRENT_DEVICE, torn = 0, failed = 0, lost = 0;
    for (int block = 0; block < EACH * (TAGS + 1); block++) {
        if (block % EACH == 0 && block < EACH * TAGS)
            begin(tag_names[block / EACH], block < EACH ? VRAMALLOC_DROP : VRAMALLOC_KEEP);
        take(block);
        if (block % EACH == EACH - 1 && block < EACH * TAGS)
            API(api.region_end());
    }
    for (int round = 0; round < ROUNDS; round++) {
        vramalloc_paused answer = {.struct_size = sizeof answer};
        int refused = api.pause(here, NULL, &answer);
        int count = count_paused();
        torn += count != (refused ? 0 : TAGS + 1) || answer.is_paused == !!refused;
        failed += refused != 0;
        if (refused) {
            lost += EACH * (TAGS + 1) - holding(0, EACH * (TAGS + 1));
            continue;
        }
        while ((refused = api.resume(here, NULL, 0, &answer))) {
            torn += count_paused() != TAGS + 1 || !answer.is_paused;
            failed++;
        }
        torn += count_paused() != 0 || answer.is_paused;
        lost += EACH * TAGS - holding(EACH, EACH * (TAGS + 1));
        for (int block = 0; block < EACH; block++)
            fill(block);
    }
    printf("failed: %d, torn: %d, lost: %d\n", failed, torn, lost);
}

static int is_over;

static void *capture_all_the_time(void *nothing) {
    gpu_stream stream;
    void *drawn;
    GPU(gpu_set_device(0));
    GPU(gpu_stream_create(&stream));
    GPU(gpu_malloc(&drawn, 4 * WORDS));
    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
        gpu_graph graph;
        GPU(gpu_capture_begin(stream, GPU_CAPTURE_THREAD_LOCAL));
        GPU(gpu_fill(stream, drawn, 77, WORDS, 1000));
        GPU(gpu_capture_end(stream, &graph));
        usleep(500);
    }
    return nothing;
}

static void captures(void) {
    enum { ROUNDS = 60 };
    int here = VRAMALLOC_CURRENT_DEVICE, torn = 0, done = 0;
    begin("weights", VRAMALLOC_KEEP);
    for (int block = 0; block < BLOCKS; block++)
        take(block);
    API(api.region_end());
    pthread_t capturing;
    pthread_create(&capturing, NULL, capture_all_the_time, NULL);
    while (done < ROUNDS) {
        vramalloc_paused answer = {.struct_size = sizeof answer};
        int refused = api.pause(here, "weights", &answer);
        torn += answer.is_paused == !!refused;
        while ((refused = api.resume(here, "weights", 0, &answer))) {
            torn += refused != 900;
            usleep(100);
        }
        done++;
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    pthread_join(capturing, NULL);
    printf("torn: %d, hold: %d\n", torn, holding(0, BLOCKS));
}

static void left(const char *command) {
    begin("cache", VRAMALLOC_DROP);
    take(0);
    API(api.region_end());
    take(1);
    paused(NULL);
    fflush(stdout);
    if (system(command))
        printf("the command failed\n");
    API(api.free(blocks[1]));
}

static void unused(void) {
    take(0);
    vramalloc_paused answer = {.struct_size = sizeof answer};
    API(api.pause(1, NULL, &answer));
    API(api.resume(1, NULL, 0, &answer));
    EXPECT(101, api.pause(7, NULL, NULL));
    printf("moved: %llu, paused: %d\n", (unsigned long long)answer.bytes,
           answer.is_paused);
}

int main(int count, char **arguments) {
    api_load();
    GPU(gpu_set_device(0));
    const char *how = count > 1 ? arguments[1] : "";
    if (!strcmp(how, "cycles"))
        cycles(atoi(arguments[2]));
    else if (!strcmp(how, "tags"))
        tags();
    else if (!strcmp(how, "regions"))
        regions();
    else if (!strcmp(how, "refusals"))
        refusals();
    else if (!strcmp(how, "reset"))
        reset();
    else if (!strcmp(how, "together"))
        together();
    else if (!strcmp(how, "captures"))
        captures();
    else if (!strcmp(how, "unused"))
        unused();
    else if (!strcmp(how, "left"))
        left(arguments[2]);
    return 0;
}
