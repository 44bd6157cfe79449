/*
 * A thread that was cancelled before it calls the C API, or asks for the first memory of
 * a region: it gets its answer, and ends at its own next point at which it lets itself
 * be cancelled.
 *
 * api_cancelled WHAT
 */
#include "api.h"
#include "gpu.h"

#include <pthread.h>
#include <string.h>

static const char *what;
static int answer = -1;

static int call(void) {
    void *block = NULL;
    int result = 0;
    if (!strcmp(what, "pause"))
        return api.pause(0, NULL, NULL);
    if (!strcmp(what, "statistics"))
        return api.ctl("statistics", NULL, NULL, 0, NULL);
    if (!strcmp(what, "pageable")) {
        result = api.malloc(1 << 20, VRAMALLOC_PAGEABLE, &block);
        return result ? result : api.free(block);
    }
    if ((result = api.region_begin("a region", 0)))
        return result;
    result = gpu_malloc(&block, 1 << 20);
    api.region_end();
    return result ? result : gpu_free(block);
}

static void *work(void *argument) {
    int before;
    (void)argument;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    GPU(gpu_set_device(0));
    pthread_cancel(pthread_self());
    pthread_setcancelstate(before, NULL);
    answer = call();
    pthread_testcancel();
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t thread;
    void *result = NULL, *block = NULL;
    if (count != 2)
        return 2;
    what = arguments[1];
    GPU(gpu_set_device(0));
    api_load();
    GPU(gpu_malloc(&block, 8 << 20));
    if (pthread_create(&thread, NULL, work, NULL) ||
        pthread_join(thread, &result))
        return 1;
    printf("%s: %d, cancelled: %d\n", what, answer, result == PTHREAD_CANCELED);
    if (!strcmp(what, "pause"))
        printf("resume: %d\n", api.resume(0, NULL, 0, NULL));
    GPU(gpu_free(block));
    return 0;
}
