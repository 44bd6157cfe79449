/*
 * Handles of shared memory: is that of an address inside an allocation the one
 * of its beginning, which bytes of it never differ, and what another process
 * gets for it. The other process is this program once more, with a handle in
 * hexadecimal as its argument; it is never preloaded.
 */
#include "facts.h"

#include <sys/wait.h>
#include <unistd.h>

enum { HANDLES = 24, BYTES = sizeof(gpu_ipc_handle), WORDS = 4 };

static void to_text(const gpu_ipc_handle *handle, char *text) {
    for (int i = 0; i < BYTES; i++)
        sprintf(text + 2 * i, "%02x", (unsigned char)handle->bytes[i]);
}

/* What the other process answers: the first word there, or minus CUDA's code. */
static long long opened_elsewhere(const char *program,
                                  const gpu_ipc_handle *handle) {
    char text[2 * BYTES + 1], answer[64] = "";
    int ends[2], status;
    to_text(handle, text);
    if (pipe(ends))
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("LD_PRELOAD");
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl("/proc/self/exe", program, text, NULL);
        _exit(127);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], answer, sizeof answer - 1) <= 0)
        strcpy(answer, "-1");
    close(ends[0]);
    waitpid(child, &status, 0);
    return atoll(answer);
}

static int open_it(const char *text) {
    gpu_ipc_handle handle;
    void *block;
    uint32_t word;
    for (int i = 0; i < BYTES; i++) {
        unsigned byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1)
            return 2;
        handle.bytes[i] = (char)byte;
    }
    GPU(gpu_set_device(0));
    int code = gpu_ipc_open(&block, handle);
    if (code) {
        printf("%d\n", -code);
        return 0;
    }
    GPU(gpu_copy_out(&word, block, sizeof word));
    printf("%u\n", word);
    return 0;
}

static void inner_addresses(char *block, size_t size, const char *program) {
    gpu_ipc_handle base, inner;
    GPU(gpu_ipc_get(&base, block));
    for (size_t offset = 256; offset < size; offset *= 16) {
        int code = gpu_ipc_get(&inner, block + offset);
        fact(code, "handle.inner.code.%zu.%zu", size, offset);
        if (!code)
            fact(memcmp(&base, &inner, sizeof base) == 0,
                 "handle.inner.same.%zu.%zu", size, offset);
    }
    fact(opened_elsewhere(program, &base), "handle.opens.%zu", size);
}

/* Bytes that are zero in every handle: no proof that they are never used. */
static void spare_bytes(void) {
    gpu_ipc_handle handles[HANDLES];
    void *blocks[HANDLES];
    int zero = 0, same = 0;
    for (int i = 0; i < HANDLES; i++) {
        GPU(gpu_malloc(&blocks[i], (size_t)512 << i % 18));
        GPU(gpu_ipc_get(&handles[i], blocks[i]));
    }
    for (int byte = 0; byte < BYTES; byte++) {
        int zeros = 0, sames = 0;
        for (int i = 0; i < HANDLES; i++) {
            zeros += handles[i].bytes[byte] == 0;
            sames += handles[i].bytes[byte] == handles[0].bytes[byte];
        }
        zero += zeros == HANDLES;
        same += sames == HANDLES;
    }
    fact(zero, "handle.bytes_always_zero");
    fact(same, "handle.bytes_always_the_same");
    for (int i = 0; i < HANDLES; i++)
        GPU(gpu_free(blocks[i]));
}

/* Handles with another byte than the driver's, and handles of nothing. */
static void strange_handles(void *block, const char *program) {
    gpu_ipc_handle handle;
    GPU(gpu_ipc_get(&handle, block));
    handle.bytes[BYTES - 1] ^= 0x55;
    fact(opened_elsewhere(program, &handle), "handle.last_byte_changed.opens");
    memset(&handle, 0xa5, sizeof handle);
    fact(opened_elsewhere(program, &handle), "handle.of_nothing.opens");
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {64 << 10, 1 << 20, 8 << 20};
    if (argc == 2)
        return open_it(argv[1]);
    GPU(gpu_set_device(0));
    for (int i = 0; i < 3; i++) {
        char *block;
        uint32_t words[WORDS] = {1000u + (uint32_t)i};
        GPU(gpu_malloc((void **)&block, sizes[i]));
        GPU(gpu_copy_in(block, words, sizeof words));
        inner_addresses(block, sizes[i], argv[0]);
        if (i == 2)
            strange_handles(block, argv[0]);
        GPU(gpu_free(block));
    }
    spare_bytes();
    return 0;
}
