/*
 * A program without CUDA that opens libraries which use it.
 *
 *   host local|global STEP...
 *
 * A step is "+PATH" (open), "-" (close what was opened last), "=FROM:TO" (the
 * file TO is replaced by FROM), "!PATH" (open in global scope, whatever the
 * first argument says), "." (call the library's own function), "*" (allocate
 * and free by the functions that the program itself finds) or "#" (occupy the
 * addresses where a library was).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PIECE = 4096, PIECES = 1 << 14 };

/* Allocates and frees by the functions that it finds; 0 for success. */
static int own_use(void) {
    int (*allocate)(void **, size_t), (*release)(void *);
    void *block = NULL;
    *(void **)&allocate = dlsym(RTLD_DEFAULT, "cudaMalloc");
    *(void **)&release = dlsym(RTLD_DEFAULT, "cudaFree");
    int code = release(NULL);
    if (!code)
        code = allocate(&block, 1 << 20);
    return code ? code : release(block);
}

int main(int count, char **arguments) {
    int how = RTLD_NOW | (strcmp(arguments[1], "global") ? RTLD_LOCAL : RTLD_GLOBAL);
    void *library = NULL;
    setbuf(stdout, NULL);
    for (int i = 2; i < count; i++) {
        char *rest = arguments[i] + 1;
        int (*use)(void);
        switch (arguments[i][0]) {
        case '+':
        case '!':
            library = dlopen(rest, arguments[i][0] == '!' ? RTLD_NOW | RTLD_GLOBAL : how);
            if (!library) {
                printf("%s\n", dlerror());
                return 1;
            }
            break;
        case '-':
            printf("close %d\n", dlclose(library));
            break;
        case '=':
            *strchr(rest, ':') = 0;
            printf("replace %d\n", rename(rest, rest + strlen(rest) + 1));
            break;
        case '#':
            for (int piece = 0; piece < PIECES; piece++)
                mmap(NULL, PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            break;
        case '*':
            printf("own use %d\n", own_use());
            break;
        default:
            *(void **)&use = dlsym(library, "use");
            printf("use %d\n", use());
        }
    }
    return 0;
}
