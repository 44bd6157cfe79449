/*
 * What the options of Paddle mean that only the C API can obey: the chunk of
 * pageable memory, who ends a scope, and how buffers are packed.
 */
#include <dirent.h>
#include <stdlib.h>

#include "api.h"

enum { LAYERS = 3, EACH = 2, SIZE = 1000 };

static void *memory(void) {
    void *address;
    API(api.malloc(SIZE, VRAMALLOC_PAGEABLE, &address));
    return address;
}

/* Bytes that one small request has made the library reserve. */
static long long chunk(void) {
    char released[32];
    API(api.ctl("trim", NULL, NULL, 0, NULL));
    API(api.free(memory()));
    API(api.ctl("trim", NULL, released, sizeof released, NULL));
    return atoll(released);
}

static int threads(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void end_a_scope(void) {
    vramalloc_scope scope;
    API(api.scope_begin(&scope));
    memory();
    API(api.scope_end(scope));
}

static int packed(void) {
    static const char *names[LAYERS * EACH] = {"a.w", "a.b", "b.w",
                                               "b.b", "c.w", "c.b"};
    vramalloc_member members[LAYERS * EACH];
    void *addresses[LAYERS * EACH];
    vramalloc_group group;
    size_t allocations;
    for (int i = 0; i < LAYERS * EACH; i++)
        members[i] = (vramalloc_member){SIZE, names[i], 0};
    API(api.group_malloc(members, LAYERS * EACH, VRAMALLOC_PAGEABLE, addresses,
                         &group));
    API(api.group_allocations(group, &allocations));
    API(api.group_free(group));
    return (int)allocations;
}

int main(void) {
    api_load();
    printf("chunk: %lld\n", chunk());
    int before = threads();
    end_a_scope();
    printf("threads: %d\n", threads() - before);
    printf("allocations: %d\n", packed());
    return 0;
}
