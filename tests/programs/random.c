/*
 * Random programs, one for each seed: allocations and frees of all sizes, of
 * devices and of page-locked host memory, right and wrong ones, streams of both kinds that come and go with work
 * pending, kernels that write late, copies, events, captures in every mode,
 * two devices that may be peers, several threads of which one works at a time.
 *
 *   random FIRST COUNT
 *
 * Each program is properly ordered: work on a block comes after the work
 * before it by the stream, an event or a wait, and never by the waiting that a
 * free happens to do. So what is printed, the codes of the calls and the
 * contents of the blocks, is the same whatever allocator is below. The devices
 * are reset after each program, at times with memory live. The last line
 * counts what was allocated, freed and lost in a reset; the one before it the
 * same of page-locked memory.
 */
#include "random.h"

static size_t draw_size(struct state *state) {
    static const size_t edges[] = {
        1,           2,       3,           4,       255,     256,
        257,         511,     512,         513,     1023,    1024,
        4095,        4096,    4097,        1 << 16, 1048575, 1 << 20,
        1048577,     2096640, (2 << 20) - 1, 2 << 20, 2097153, 4 << 20,
        10 << 20,    10485761, 16 << 20};
    uint32_t how = draw(state, 8);
    if (how < 3 && state->last_freed)
        return state->last_freed;
    if (how == 3)
        return edges[draw(state, sizeof edges / sizeof *edges)];
    size_t bit = (size_t)1 << draw(state, 24);
    return bit + draw(state, (uint32_t)bit);
}

static uint64_t draw_ns(struct state *state) {
    return draw(state, 2u << draw(state, 22));
}

static void allocate(struct state *state) {
    struct slot *slot = &state->slots[draw(state, SLOTS)];
    int device = (int)draw(state, (uint32_t)state->devices);
    size_t size = draw_size(state);
    int pinned = draw(state, 4) == 0, flags = (int)draw(state, 2);
    size_t *live = pinned ? &state->pinned : &state->live[device];
    size_t most = pinned ? MOST_PINNED : MOST_LIVE;
    if (slot->block || !may_allocate(state) || *live + size > most)
        return;
    use_device(device);
    int code = pinned ? gpu_host_alloc(&slot->block, size, (unsigned)flags)
                      : gpu_malloc(&slot->block, size);
    printf("allocate %zu %s %d: %d\n", size,
           pinned ? "pinned, context" : "on", device, code);
    if (code)
        return;
    state->allocated[pinned]++;
    *live += size;
    slot->pinned = pinned;
    slot->size = size;
    slot->device = device;
    slot->known = 0;
    slot->after = on_host;
}

static int free_as(int pinned, void *block) {
    return pinned ? gpu_free_host(block) : gpu_free(block);
}

static void free_slot(struct state *state, struct slot *slot, int wrongly) {
    int code = free_as(slot->pinned, slot->block);
    printf("free %zu of %d: %d\n", slot->size, slot->device, code);
    *(slot->pinned ? &state->pinned : &state->live[slot->device]) -= slot->size;
    state->last_freed = slot->size;
    if (!code)
        state->freed[slot->pinned]++;
    if (wrongly) {
        code = free_as(slot->pinned, slot->block);
        printf("free again: %d, last error %d\n", code, gpu_last_error());
    }
    slot->block = NULL;
}

static void free_one(struct state *state) {
    struct slot *slot = pick(state);
    if (!slot || !may_allocate(state))
        return;
    use_device((int)draw(state, (uint32_t)state->devices));
    free_slot(state, slot, draw(state, 8) == 0 && !is_capturing(state));
}

/* Frees what is none of ours to free. */
static void free_wrongly(struct state *state) {
    struct slot *slot = pick(state);
    void *pointer = NULL;
    if (!slot || is_capturing(state))
        return;
    use_device(slot->device);
    int pinned = slot->pinned;
    switch (draw(state, 5)) {
    case 0:
        pointer = (char *)slot->block + 1 + draw(state, (uint32_t)slot->size);
        break;
    case 4:
        /* As what it is not. */
        printf("free as another sort: %d, last error %d\n",
               free_as(!pinned, slot->block), gpu_last_error());
        return;
    case 1:
        pointer = (void *)(uintptr_t)4096;
        break;
    case 2:
        printf("allocate nothing: %d\n", gpu_malloc(&pointer, 0));
        pointer = NULL;
        break;
    }
    /* Past the end of a block may be another one, the beginning of a third. */
    for (int i = 0; i < SLOTS; i++)
        if (pointer && state->slots[i].block == pointer)
            return;
    int code = free_as(pinned, pointer);
    printf("free wrongly: %d, last error %d\n", code, gpu_last_error());
}

static int reaches(struct place place, const struct slot *slot) {
    return slot->pinned || slot->device == place.device;
}

/* The host writes to what is pinned. */
static void write_on_host(struct state *state) {
    struct slot *slot = pick(state);
    if (!slot || !slot->pinned || is_capturing(state))
        return;
    bring_to_host(state, slot);
    memset(slot->block, (int)draw(state, 256), slot->size);
    raise_known(slot, slot->size);
    printf("the host writes %zu\n", slot->size);
}

/* Writes to a block in one of the ways there are. */
static void write_one(struct state *state) {
    struct slot *slot = pick(state), *from = pick(state);
    struct place place;
    if (!slot || !draw_place(state, slot, &place) ||
        !bring(state, slot, place))
        return;
    gpu_stream stream = stream_of(state, place);
    uint32_t value = (uint32_t)draw(state, 1u << 31), how = draw(state, 4);
    int code;
    if (how == 0 && from && from != slot && reaches(place, from) &&
        reaches(place, slot) && bring(state, from, place)) {
        size_t size = from->known < slot->size ? from->known : slot->size;
        code = slot->pinned || from->pinned
                   ? gpu_copy_unified(slot->block, from->block, size, stream)
                   : gpu_copy_async(slot->block, from->block, size, stream);
        from->after = place;
        raise_known(slot, size);
        printf("copy %zu: %d\n", size, code);
    } else if (how == 1) {
        code = gpu_set_async(slot->block, (int)(value & 255), slot->size,
                             stream);
        raise_known(slot, slot->size);
        printf("set %zu: %d\n", slot->size, code);
    } else {
        uint64_t words = slot->size / 4;
        words -= how == 2 ? draw(state, (uint32_t)words + 1) : 0;
        code = gpu_fill(stream, slot->block, value, words, draw_ns(state));
        raise_known(slot, words * 4);
        printf("fill %llu words: %d\n", (unsigned long long)words, code);
    }
    slot->after = place;
}

static void check_one(struct state *state) {
    struct slot *slot = pick(state);
    if (slot && !is_capturing(state))
        check(state, slot);
}

/* Destroys a stream, with whatever is pending on it, or makes one. */
static void change_stream(struct state *state) {
    int device = (int)draw(state, (uint32_t)state->devices);
    int number = 1 + (int)draw(state, STREAMS - 1);
    struct stream *stream = &state->streams[device][number];
    if (is_capturing(state))
        return;
    use_device(device);
    if (stream->alive) {
        printf("destroy stream: %d\n", gpu_stream_destroy(stream->handle));
        stream->alive = 0;
        stream->version++;
        return;
    }
    stream->blocking = (int)draw(state, 2);
    int code = stream->blocking ? gpu_stream_create_blocking(&stream->handle)
                                : gpu_stream_create(&stream->handle);
    stream->alive = !code;
    printf("create stream: %d\n", code);
}

static void wait_for_some(struct state *state) {
    int device = (int)draw(state, (uint32_t)state->devices);
    struct place place = {device, (int)draw(state, STREAMS), 0};
    struct stream *stream = &state->streams[device][place.stream];
    if (is_capturing(state))
        return;
    use_device(device);
    if (draw(state, 3) == 0) {
        printf("wait for device %d\n", device);
        wait_for_device(state, device);
    } else if (stream->alive) {
        place.version = stream->version;
        printf("wait for stream: %d\n", gpu_stream_sync(stream->handle));
        for (int i = 0; i < SLOTS; i++)
            if (same_place(state->slots[i].after, place))
                state->slots[i].after = on_host;
    }
}

/* Facts that hold whatever is below. */
static void ask_for_memory(struct state *state) {
    int device = (int)draw(state, (uint32_t)state->devices);
    size_t available = 0, total = 0, again = 0;
    if (is_capturing(state))
        return;
    use_device(device);
    int code = gpu_mem_info(&available, &total);
    printf("memory: %d, none of what is live is free: %d\n", code,
           available + state->live[device] <= total);
    code = gpu_mem_info(NULL, &again);
    printf("total: %d, the same: %d\n", code, again == total);
}

static void do_something(void *argument) {
    struct state *state = argument;
    static void (*const doings[])(struct state *) = {
        allocate,      allocate,  allocate,    free_one,       free_one,
        write_one,     write_one, write_one,   write_one,      check_one,
        change_stream, capture,   free_wrongly, ask_for_memory, wait_for_some,
        capture,       write_on_host};
    doings[draw(state, sizeof doings / sizeof *doings)](state);
}

static void set_up(void *argument) {
    struct state *state = argument;
    for (int device = 0; device < state->devices; device++) {
        use_device(device);
        state->streams[device][0].alive = 1;
        state->streams[device][0].blocking = 1;
        if (state->peers)
            printf("peer: %d\n", gpu_enable_peer(1 - device));
    }
}

/* Loads the kernels for this thread, which an open capture might forbid. */
static void load_kernels(void *argument) {
    (void)argument;
    use_device(0);
    GPU(gpu_spin(NULL, 0));
}

static void tear_down(void *argument) {
    struct state *state = argument;
    int lose = draw(state, 4) == 0;
    end_capture(state);
    for (int i = 0; i < SLOTS; i++)
        if (state->slots[i].block && draw(state, 2))
            check(state, &state->slots[i]);
    for (int i = 0; i < SLOTS; i++)
        if (state->slots[i].block && !lose)
            free_slot(state, &state->slots[i], 0);
        else
            state->lost[state->slots[i].pinned] +=
                state->slots[i].block != NULL;
    /* A kernel of a peer may not outlive memory that nobody has freed. */
    for (int device = 0; device < state->devices && lose; device++)
        wait_for_device(state, device);
    for (int device = 0; device < state->devices; device++) {
        use_device(device);
        GPU(gpu_reset());
    }
}

static void run(uint64_t seed, long totals[2][3]) {
    struct state *state = calloc(1, sizeof *state);
    if (!state)
        exit(1);
    state->random = seed * 0x9e3779b97f4a7c15u;
    draw(state, 1);
    state->devices = 1 + (int)draw(state, 2);
    state->peers = state->devices == 2 && draw(state, 2);
    state->threads = draw(state, 4) ? 1 : 2 + (int)draw(state, CREW_MOST - 1);
    int steps = 40 + (int)draw(state, 120);
    printf("seed %llu: %d devices, %s, %d threads, %d steps\n",
           (unsigned long long)seed, state->devices,
           state->peers ? "peers" : "apart", state->threads, steps);
    struct crew crew;
    crew_start(&crew, state->threads);
    set_up(state);
    for (int thread = 0; thread < state->threads; thread++)
        crew_do(&crew, thread, load_kernels, NULL);
    for (int step = 0; step < steps; step++) {
        state->thread = (int)draw(state, (uint32_t)state->threads);
        crew_do(&crew, state->thread, do_something, state);
    }
    /* A capture ends where it began. */
    state->thread = is_capturing(state) ? state->capture.thread : 0;
    crew_do(&crew, state->thread, tear_down, state);
    crew_end(&crew);
    for (int pinned = 0; pinned < 2; pinned++) {
        totals[pinned][0] += state->allocated[pinned];
        totals[pinned][1] += state->freed[pinned];
        totals[pinned][2] += state->lost[pinned];
    }
    free(state->host);
    free(state);
}

int main(int argc, char **argv) {
    long totals[2][3] = {{0}};
    if (argc != 3) {
        fprintf(stderr, "usage: random FIRST COUNT\n");
        return 2;
    }
    uint64_t first = strtoull(argv[1], NULL, 10);
    uint64_t count = strtoull(argv[2], NULL, 10);
    for (uint64_t seed = first; seed < first + count; seed++)
        run(seed, totals);
    printf("pinned: allocated %ld, freed %ld, lost %ld\n", totals[1][0],
           totals[1][1], totals[1][2]);
    printf("allocated %ld, freed %ld, lost %ld\n", totals[0][0], totals[0][1],
           totals[0][2]);
    return 0;
}
