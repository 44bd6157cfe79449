/*
 * Allocates while descriptor 2 is not what a library may think.
 *
 *   descriptors nobody       a pipe that nobody reads
 *   descriptors full         a pipe that is full, and stays so
 *   descriptors nonblocking  the same, and a write to it does not wait
 *   descriptors reused       closed, and then a file of the program's
 *   descriptors closed       the same, and closed from the start
 *   descriptors plain        as it is
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <fcntl.h>
#include <unistd.h>

/* Starts over with this for descriptor 2. */
static void start_over(char **argv, int descriptor) {
    if (descriptor >= 0)
        dup2(descriptor, 2);
    else
        close(2);
    execl("/proc/self/exe", argv[0], argv[1], "again", (char *)NULL);
    exit(1);
}

static int pipe_to(int nobody, int full, int flags) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK))
        exit(1);
    while (full && write(ends[1], "x", 1) == 1)
        ;
    if (nobody)
        close(ends[0]);
    fcntl(ends[1], F_SETFL, flags);
    return ends[1];
}

static void allocate(void) {
    void *block;
    GPU(gpu_set_device(0));
    GPU(gpu_malloc(&block, 4096));
    GPU(gpu_free(block));
}

/* The program's own file, which the system gives the first free number. */
static void allocate_beside_data(void) {
    char text[256] = "";
    close(2);
    int data = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (data != 2 || write(data, "begin ", 6) != 6)
        exit(1);
    allocate();
    if (write(data, "end", 3) != 3 || pread(data, text, 255, 0) < 0)
        exit(1);
    unlink("data");
    printf("data: %s\n", text);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    int again = argc > 2;
    if (!again && !strcmp(how, "nobody"))
        start_over(argv, pipe_to(1, 0, 0));
    if (!again && !strcmp(how, "full"))
        start_over(argv, pipe_to(0, 1, 0));
    if (!again && !strcmp(how, "nonblocking"))
        start_over(argv, pipe_to(0, 1, O_NONBLOCK));
    if (!again && !strcmp(how, "closed"))
        start_over(argv, -1);
    if (!strcmp(how, "reused") || !strcmp(how, "closed"))
        allocate_beside_data();
    else
        allocate();
    printf("%s: well\n", how);
    return 0;
}
