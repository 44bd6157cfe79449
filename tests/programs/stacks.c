/*
 * Asks for memory from stacks of many shapes and prints each block with the
 * places that the compiler's own unwinder finds there, from the caller of the
 * function that asks outwards: as file+offset of the call, in hexadecimal.
 *
 * usage: stacks deep | odd | liars | reloads LIBRARY...
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <alloca.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unwind.h>

enum { DEEPEST = 256, LEVELS = 55 };

static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;

struct trace {
    int count;
    uintptr_t places[DEEPEST];
};

static _Unwind_Reason_Code visit(struct _Unwind_Context *context, void *data) {
    struct trace *trace = data;
    uintptr_t place = _Unwind_GetIP(context);
    if (!place || trace->count == DEEPEST)
        return _URC_END_OF_STACK;
    trace->places[trace->count++] = place;
    return _URC_NO_REASON;
}

static void print_place(uintptr_t place) {
    Dl_info info;
    struct link_map *map = NULL;
    uintptr_t call = place - 1;
    if (!dladdr1((void *)call, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) {
        printf(" +%zx", (size_t)call);
        return;
    }
    const char *name = strrchr(info.dli_fname, '/');
    printf(" %s+%zx", name ? name + 1 : info.dli_fname, (size_t)(call - map->l_addr));
}

/* Asks for memory and says where it was asked for. */
__attribute__((noinline)) static void *ask(size_t size) {
    static struct trace traces[8];
    static _Thread_local int own = -1;
    static int next;
    if (own < 0)
        own = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    struct trace *trace = &traces[own];
    void *block = NULL;
    trace->count = 0;
    GPU(gpu_malloc(&block, size));
    _Unwind_Backtrace(visit, trace);
    pthread_mutex_lock(&printing);
    printf("%zx", (size_t)(uintptr_t)block);
    for (int i = 1; i < trace->count; i++)
        print_place(trace->places[i]);
    printf("\n");
    pthread_mutex_unlock(&printing);
    return block;
}

static volatile int sink;

/* Frames of several shapes that call one another. */
static void descend(int level, unsigned shape);

__attribute__((noinline)) static void plain(int level, unsigned shape) {
    descend(level - 1, shape);
    sink++;
}

__attribute__((noinline)) static void large(int level, unsigned shape) {
    volatile char room[9000];
    room[shape % sizeof room] = 1;
    descend(level - 1, shape + room[shape % sizeof room]);
    sink++;
}

/* Its size is known late, so it needs its frame pointer. */
__attribute__((noinline)) static void growing(int level, unsigned shape) {
    volatile char *room = alloca(shape % 500 + 16);
    room[0] = 1;
    descend(level - 1, shape + room[0]);
    sink++;
}

/* It aligns its stack, in the two ways that compilers have. */
__attribute__((noinline)) static void aligned(int level, unsigned shape) {
    volatile char room[64] __attribute__((aligned(64)));
    room[0] = 1;
    descend(level - 1, shape + room[0]);
    sink++;
}

__attribute__((noinline)) static void aligned_growing(int level, unsigned shape) {
    volatile char room[64] __attribute__((aligned(64)));
    volatile char *more = alloca(shape % 300 + 16);
    room[0] = more[0] = 1;
    descend(level - 1, shape + room[0]);
    sink++;
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static void
framed(int level, unsigned shape) {
    descend(level - 1, shape);
    sink++;
}

static int by_key(const void *one, const void *other) {
    (void)one;
    return *(const int *)other;
}

static int searched_level;
static unsigned searched_shape;

static int descend_when_compared(const void *one, const void *other) {
    descend(searched_level - 1, searched_shape);
    return by_key(one, other);
}

/* By way of a library that calls back. */
__attribute__((noinline)) static void called_back(int level, unsigned shape) {
    int zero = 0;
    searched_level = level;
    searched_shape = shape;
    sink += bsearch(&zero, &zero, 1, sizeof zero, descend_when_compared) != NULL;
}

static void *kept[4096];
static int kept_count;

static void keep(void *block) {
    int at = __atomic_fetch_add(&kept_count, 1, __ATOMIC_RELAXED);
    if (at < 4096)
        kept[at] = block;
}

__attribute__((noinline)) static void descend(int level, unsigned shape) {
    static void (*const shapes[])(int, unsigned) = {
        plain, large, growing, aligned, aligned_growing, framed,
    };
    if (level <= 0) {
        keep(ask(600 + shape % 100000));
        return;
    }
    shape = shape * 1103515245 + 12345;
    shapes[(shape >> 16) % 6](level, shape);
    sink++;
}

static void *descend_often(void *seed) {
    GPU(gpu_set_device(0));
    for (int level = 0; level <= LEVELS; level++)
        descend(level, (unsigned)(uintptr_t)seed + level);
    return NULL;
}

static void deep(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, descend_often, (void *)(i + 7)))
            exit(1);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    descend_often((void *)100);
    called_back(10, 5);
}

/* Code without tables, between the program and who asks. */
void without_tables(void (*call)(void));
__asm__(".text\n"
        ".type without_tables, @function\n"
        "without_tables:\n"
        "  push %rbx\n"
        "  push %r12\n"
        "  sub $24, %rsp\n"
        "  call *%rdi\n"
        "  add $24, %rsp\n"
        "  pop %r12\n"
        "  pop %rbx\n"
        "  ret\n"
        ".size without_tables, .-without_tables\n");

static void ask_once(void) {
    keep(ask(2000));
}

static void on_signal(int number) {
    (void)number;
    keep(ask(3000));
}

static ucontext_t outside, inside;

static void coroutine(void) {
    descend(5, 77);
    swapcontext(&inside, &outside);
    descend(6, 78);
}

static void odd(void) {
    without_tables(ask_once);

    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);

    enum { STACK = 1 << 20 };
    stack_t stack = {.ss_sp = malloc(STACK), .ss_size = STACK};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);

    getcontext(&inside);
    inside.uc_stack.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    inside.uc_stack.ss_size = STACK;
    inside.uc_link = &outside;
    makecontext(&inside, coroutine, 0);
    swapcontext(&outside, &inside);
    swapcontext(&outside, &inside);

    /* sub $8, %rsp; call *%rdi; add $8, %rsp; ret */
    static const unsigned char code[] = {0x48, 0x83, 0xec, 8,    0xff, 0xd7,
                                         0x48, 0x83, 0xc4, 8, 0xc3};
    void *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof code);
    ((void (*)(void (*)(void)))(uintptr_t)made)(ask_once);
    descend(3, 9);
}

/*
 * Functions whose tables are wrong, each called with a frame pointer that is
 * anything. They save what they change and say something else.
 */
#define LIAR(name, lie)                                                        \
    void name(void (*call)(void), uint64_t pointer);                           \
    __asm__(".text\n"                                                          \
            ".type " #name ", @function\n" #name ":\n"                         \
            "  .cfi_startproc\n"                                               \
            "  push %rbp\n"                                                    \
            "  push %rbx\n"                                                    \
            "  sub $8, %rsp\n"                                                 \
            "  mov %rsi, %rbp\n" lie "\n"                                      \
            "  call *%rdi\n"                                                   \
            "  add $8, %rsp\n"                                                 \
            "  pop %rbx\n"                                                     \
            "  pop %rbp\n"                                                     \
            "  ret\n"                                                          \
            "  .cfi_endproc\n"                                                 \
            ".size " #name ", .-" #name "\n")

LIAR(by_pointer, ".cfi_def_cfa rbp, 16");
LIAR(by_pointer_below, ".cfi_def_cfa rbp, -4096");
LIAR(too_small, ".cfi_def_cfa_offset 16");
LIAR(too_large, ".cfi_def_cfa_offset 0x7fffff00");
LIAR(negative, ".cfi_def_cfa_offset -64");
LIAR(behind, ".cfi_escape 0x0f, 0x03, 0x76, 0x78, 0x06");
LIAR(saved_far, ".cfi_def_cfa_offset 32\n.cfi_offset rbp, -200000");
LIAR(saved_behind, ".cfi_def_cfa_offset 32\n.cfi_escape 0x10, 0x06, 0x02, 0x76, 0x00");
LIAR(by_other, ".cfi_def_cfa rbx, 32");
LIAR(nowhere, ".cfi_undefined rip");

static void ask_quietly(void) {
    void *block = NULL;
    GPU(gpu_malloc(&block, 700));
    GPU(gpu_free(block));
}

static void *lie_often(void *seed) {
    static void (*const liars[])(void (*)(void), uint64_t) = {
        by_pointer, by_pointer_below, too_small, too_large, negative,
        behind,     saved_far,        saved_behind, by_other, nowhere,
    };
    uint64_t random = (uintptr_t)seed;
    GPU(gpu_set_device(0));
    for (int i = 0; i < 30000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t here = (uintptr_t)&random, pointer = random;
        switch (random >> 60 & 3) {
        case 0: pointer = here + (random >> 40 & 0xffff8) - 0x8000; break;
        case 1: pointer = here | (random >> 32 & 0xffffff); break;
        case 2: pointer = (uintptr_t)lie_often + (random >> 50); break;
        default: break;
        }
        liars[(random >> 33) % 10](ask_quietly, pointer);
    }
    return NULL;
}

static void liars(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, lie_often, (void *)(i + 1)))
            exit(1);
    lie_often((void *)99);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

/* Asks from libraries that are loaded in the place of one another. */
static void reloads(int count, char **libraries) {
    for (int round = 0; round < 20; round++) {
        void *library = dlopen(libraries[round % count], RTLD_NOW);
        void (*through)(void (*)(void)) = NULL;
        if (library)
            through = (void (*)(void (*)(void)))dlsym(library, "through");
        if (!through)
            exit(3);
        for (int call = 0; call < 3; call++)
            through(ask_once);
        dlclose(library);
    }
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    GPU(gpu_set_device(0));
    if (!strcmp(what, "deep"))
        deep();
    else if (!strcmp(what, "odd"))
        odd();
    else if (!strcmp(what, "liars"))
        liars();
    else if (!strcmp(what, "reloads"))
        reloads(count - 2, words + 2);
    else
        return 2;
    return 0;
}
