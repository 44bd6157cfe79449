/*
 * Several threads write the statistics into one file, and read what is there:
 * each write succeeds, and each reader finds a whole file.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "api.h"

enum { THREADS = 4, ROUNDS = 50 };

static const char *const name = "vramalloc.dump.json";
static int torn;

/* Whether the file has its end. */
static int is_whole(void) {
    char end[3] = "";
    FILE *file = fopen(name, "r");
    if (!file)
        return 0;
    int read = !fseek(file, -2, SEEK_END) && fread(end, 1, 2, file) == 2;
    fclose(file);
    return read && !strcmp(end, "}\n");
}

static void *dump(void *nothing) {
    for (int round = 0; round < ROUNDS; round++) {
        API(api.ctl("dump", name, NULL, 0, NULL));
        if (!is_whole())
            __atomic_add_fetch(&torn, 1, __ATOMIC_RELAXED);
    }
    return nothing;
}

int main(void) {
    pthread_t threads[THREADS];
    void *address;
    api_load();
    /* Something for the snapshot to tell of. */
    for (int i = 0; i < 500; i++)
        API(api.malloc(1000, VRAMALLOC_PAGEABLE, &address));
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, dump, NULL))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("torn: %d\n", torn);
    return 0;
}
