/*
 * Asks the dynamic linker for everything that a preloaded dlsym could get
 * wrong and prints the answers, line by line.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The file that an address lies in. */
static const char *file_of(void *address) {
    Dl_info info;
    if (address == NULL)
        return "nowhere";
    if (!dladdr(address, &info))
        return "no file";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void find(const char *label, void *handle, const char *name) {
    dlerror();
    void *found = dlsym(handle, name);
    const char *error = dlerror();
    printf("%s %s: %s, %s\n", label, name, file_of(found), error ? error : "no error");
}

typedef int resolver(const char *, void **, int, unsigned long long, int *);

static void resolve(const char *label, resolver *ask, const char *name, int version) {
    void *found = NULL;
    int status = -1;
    int result = ask(name, &found, version, 0, &status);
    printf("%s %s at %d: %d, %d, %s\n", label, name, version, result, status, file_of(found));
}

int main(void) {
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *program = dlopen(NULL, RTLD_NOW);
    if (libc == NULL || driver == NULL || program == NULL) {
        printf("%s\n", dlerror());
        return 1;
    }
    printf("isatty: %d\n", isatty(-1));

    const char *names[] = {"getpid",        "no_such_name",   "c",         "cu", "cuInit",
                           "cuMemAlloc_v2", "cuMemFree_v2",   "cuMemAlloc", "",
                           "cuMemAlloc_v22", "wrapped_cuInit"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        find("libc", libc, names[i]);
        find("driver", driver, names[i]);
    }
    /* Another library that has a function of that name. */
    find("other", dlopen("libother.so", RTLD_NOW), "cuMemAlloc_v2");
    find("next", RTLD_NEXT, "getpid");
    find("next", RTLD_NEXT, "no_such_name");
    find("default", RTLD_DEFAULT, "getpid");
    find("default", RTLD_DEFAULT, "no_such_name");
    find("program", program, "no_such_name");

    /* A failure that was not read yet can still be read. */
    dlsym(libc, "no_such_name");
    printf("pending: %s\n", dlerror());
    printf("and then: %s\n", dlerror() ? "an error" : "none");

    void *(*driver_finds)(void) = (void *(*)(void))dlsym(driver, "driver_finds");
    printf("the driver itself: %s\n", file_of(driver_finds()));

    resolver *ask = (resolver *)dlsym(driver, "cuGetProcAddress_v2");
    void *again = NULL;
    int status;
    ask("cuGetProcAddress", &again, 12000, 0, &status);
    printf("resolver: %s, by itself: %s\n", file_of((void *)ask), file_of(again));
    resolve("resolver", (resolver *)again, "cuMemAlloc", 3020);
    resolve("resolver", (resolver *)again, "cuInit", 2000);
    resolve("resolver", (resolver *)again, "cuMemFree", 3020);
    resolve("resolver", (resolver *)again, "cuCtxCreate", 11040);
    resolve("resolver", (resolver *)again, "cuCtxCreate", 12050);
    resolve("resolver", (resolver *)again, "cuMemHostAlloc", 2020);
    resolve("resolver", (resolver *)again, "cuMemAlloc", 99000);

    int (*allocate)(unsigned long long *, size_t);
    int (*release)(unsigned long long);
    unsigned long long address = 0;
    *(void **)&allocate = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&release = dlsym(driver, "cuMemFree_v2");
    printf("calls: %d, %d\n", allocate(&address, 41), release(43));
    return 0;
}
