/*
 * The state of a random program: what lives where, what is in it, and after
 * what work it may be touched; and the steps that keep to that order.
 */
#ifndef PROGRAMS_RANDOM_H
#define PROGRAMS_RANDOM_H

#include "gpu.h"

#include "crew.h"

enum {
    DEVICES = 2,
    STREAMS = 5, /* of each device; 0 is the legacy default stream */
    SLOTS = 16,
    CAPTURED = 3,
    MOST_LIVE = 96 << 20,
    MOST_PINNED = 48 << 20,
    HOST_STREAM = -1
};

struct stream {
    gpu_stream handle;
    int alive, blocking;
    unsigned version; /* counts those destroyed */
};

/* Where work is: on a stream as it was then, or done as the host knows. */
struct place {
    int device, stream;
    unsigned version;
};

static const struct place on_host = {0, HOST_STREAM, 0};

struct slot {
    void *block; /* NULL: empty */
    int pinned;  /* it is the host's, and every device reaches it */
    size_t size, known; /* so many bytes from the beginning were written */
    int device;
    struct place after; /* the last work on it */
    int captured;
};

/* A capture that goes on, on one stream. */
struct capture {
    int open, mode, thread;
    struct place place;
    struct slot *slots[CAPTURED];
    size_t known[CAPTURED]; /* as it will be after a launch */
    int count;
};

struct state {
    uint64_t random;
    int devices, peers, threads;
    int thread; /* whose turn it is */
    struct stream streams[DEVICES][STREAMS];
    struct slot slots[SLOTS];
    struct capture capture;
    size_t live[DEVICES], pinned, last_freed;
    long allocated[2], freed[2], lost[2]; /* of devices, and pinned */
    unsigned char *host;
};

static uint32_t draw(struct state *state, uint32_t below) {
    state->random = state->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state->random >> 33) % below;
}

static void use_device(int device) { GPU(gpu_set_device(device)); }

static int is_capturing(const struct state *state) {
    return state->capture.open;
}

/* What an open capture leaves to this thread. */
static int may_allocate(const struct state *state) {
    const struct capture *capture = &state->capture;
    return !capture->open || capture->mode == GPU_CAPTURE_RELAXED ||
           (capture->mode == GPU_CAPTURE_THREAD_LOCAL &&
            capture->thread != state->thread);
}

/* A block that no capture holds. */
static struct slot *pick(struct state *state) {
    for (int i = 0; i < 4; i++) {
        struct slot *slot = &state->slots[draw(state, SLOTS)];
        if (slot->block && !slot->captured)
            return slot;
    }
    return NULL;
}

static void raise_known(struct slot *slot, size_t known) {
    slot->known = slot->known > known ? slot->known : known;
}

static int same_place(struct place a, struct place b) {
    return a.device == b.device && a.stream == b.stream &&
           a.version == b.version;
}

static gpu_stream stream_of(struct state *state, struct place place) {
    return state->streams[place.device][place.stream].handle;
}

static struct place place_of(struct state *state, int device, int stream) {
    return (struct place){device, stream,
                          state->streams[device][stream].version};
}

/* A stream that may work on the block now. */
static int draw_place(struct state *state, const struct slot *slot,
                      struct place *place) {
    int device = slot->device;
    if ((state->peers || (slot->pinned && state->devices == 2)) &&
        draw(state, 4) == 0)
        device = 1 - device;
    int stream = (int)draw(state, STREAMS);
    if (!state->streams[device][stream].alive)
        stream = 0;
    /* The legacy stream may order with what is being captured. */
    if (state->capture.open && (stream == 0 || (device ==
        state->capture.place.device && stream == state->capture.place.stream)))
        return 0;
    *place = place_of(state, device, stream);
    return 1;
}

static void wait_for_device(struct state *state, int device) {
    use_device(device);
    GPU(gpu_sync());
    for (int i = 0; i < SLOTS; i++)
        if (state->slots[i].after.device == device)
            state->slots[i].after = on_host;
}

/* The legacy stream and the blocking ones of a device order by themselves. */
static int orders(struct state *state, struct place a, struct place b) {
    return a.device == b.device &&
           ((a.stream == 0 && state->streams[b.device][b.stream].blocking) ||
            (b.stream == 0 && state->streams[a.device][a.stream].blocking));
}

/* Orders what comes on `place` after the work on the block, and makes the
 * place's device current. Not possible for all while a capture is open. */
static int bring(struct state *state, struct slot *slot, struct place place) {
    struct place after = slot->after;
    int waits = after.stream != HOST_STREAM && !same_place(after, place);
    if (waits && state->capture.open)
        return 0;
    if (waits && state->streams[after.device][after.stream].version !=
                     after.version) {
        wait_for_device(state, after.device);
    } else if (waits && !orders(state, after, place)) {
        gpu_event event;
        use_device(after.device);
        GPU(gpu_event_create(&event));
        GPU(gpu_event_record(event, stream_of(state, after)));
        use_device(place.device);
        /* What the answer is depends on the time that has passed. */
        int code = gpu_event_query(event);
        if (code && code != GPU_NOT_READY)
            printf("event: %d\n", code);
        gpu_last_error();
        GPU(gpu_stream_wait(stream_of(state, place), event));
        GPU(gpu_event_destroy(event));
    }
    use_device(place.device);
    return 1;
}

static uint32_t checksum(const unsigned char *bytes, size_t size, uint32_t sum) {
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ bytes[i]) * 16777619u;
    return sum;
}

/* Waits until the host may touch a pinned block. */
static void bring_to_host(struct state *state, struct slot *slot) {
    bring(state, slot, place_of(state, slot->device, 0));
    GPU(gpu_stream_sync(NULL));
    slot->after = on_host;
}

/* Reads what is known of a block: its ends and its middle, if it is large. */
static void check(struct state *state, struct slot *slot) {
    enum { PIECE = 4096 };
    uint32_t sum = 2166136261u;
    size_t starts[3] = {0, slot->known / 2, slot->known - PIECE};
    int pieces = slot->known > 3 * PIECE ? 3 : 1;
    size_t size = pieces == 3 ? PIECE : slot->known;
    if (!state->host && !(state->host = malloc(3 * PIECE)))
        exit(1);
    if (slot->pinned) {
        bring_to_host(state, slot);
    } else {
        bring(state, slot, place_of(state, slot->device, 0));
        slot->after = place_of(state, slot->device, 0);
    }
    for (int i = 0; i < pieces; i++) {
        char *from = (char *)slot->block + starts[i];
        if (slot->pinned)
            memcpy(state->host, from, size);
        else
            GPU(gpu_copy_out(state->host, from, size));
        sum = checksum(state->host, size, sum);
    }
    printf("%zu of %zu bytes: %08x\n", slot->known, slot->size, sum);
}

static void begin_capture(struct state *state) {
    static const int modes[] = {GPU_CAPTURE_GLOBAL, GPU_CAPTURE_THREAD_LOCAL,
                                GPU_CAPTURE_RELAXED, GPU_CAPTURE_RELAXED};
    struct capture *capture = &state->capture;
    int device = (int)draw(state, (uint32_t)state->devices);
    int stream = 1 + (int)draw(state, STREAMS - 1);
    if (!state->streams[device][stream].alive)
        return;
    capture->place = place_of(state, device, stream);
    capture->mode = modes[draw(state, 4)];
    capture->thread = state->thread;
    capture->count = 0;
    for (int i = 0; i < CAPTURED; i++) {
        struct slot *slot = pick(state);
        if (!slot ||
            (slot->device != device && !state->peers && !slot->pinned))
            continue;
        bring(state, slot, capture->place);
        slot->after = capture->place;
        slot->captured = 1;
        capture->known[capture->count] = slot->known;
        capture->slots[capture->count++] = slot;
    }
    use_device(device);
    int code =
        gpu_capture_begin(stream_of(state, capture->place), capture->mode);
    printf("capture in mode %d: %d\n", capture->mode, code);
    capture->open = 1;
}

static void capture_work(struct state *state) {
    struct capture *capture = &state->capture;
    if (!capture->count)
        return;
    uint32_t number = draw(state, (uint32_t)capture->count);
    struct slot *slot = capture->slots[number];
    uint64_t words = draw(state, (uint32_t)(slot->size / 4) + 1);
    use_device(capture->place.device);
    int code = gpu_fill(stream_of(state, capture->place), slot->block,
                        draw(state, 1u << 31), words, draw(state, 1u << 20));
    if (capture->known[number] < words * 4)
        capture->known[number] = words * 4;
    printf("capture a fill of %llu words: %d\n", (unsigned long long)words,
           code);
}

/* Ends the capture, if one is open, and launches it some times. */
static void end_capture(struct state *state) {
    struct capture *capture = &state->capture;
    gpu_graph graph;
    void *executable;
    if (!capture->open)
        return;
    use_device(capture->place.device);
    gpu_stream stream = stream_of(state, capture->place);
    int code = gpu_capture_end(stream, &graph);
    printf("capture ends: %d\n", code);
    capture->open = 0;
    for (int i = 0; i < capture->count; i++)
        capture->slots[i]->captured = 0;
    if (code)
        return;
    code = gpu_graph_prepare(&executable, graph);
    uint32_t launches = draw(state, 3);
    for (uint32_t i = 0; i < launches && !code; i++)
        code = gpu_graph_launch(executable, stream);
    for (int i = 0; i < capture->count && launches; i++)
        capture->slots[i]->known = capture->known[i];
    printf("%u launches: %d, %d\n", launches, code,
           gpu_graph_destroy(executable));
}

static void capture(struct state *state) {
    if (!state->capture.open) {
        if (draw(state, 2))
            begin_capture(state);
    } else if (state->capture.thread == state->thread) {
        if (draw(state, 2))
            capture_work(state);
        else
            end_capture(state);
    }
}

#endif
