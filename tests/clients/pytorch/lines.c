/*
 * Stands before the library and notes, at each allocation, the line of Python that
 * the interpreter itself says the thread is at: to compare with the line that the
 * library finds. Writes to the file that LINES names: "+ ADDRESS SIZE FILE:LINE",
 * with "-" for the line where the thread runs no Python, and "- ADDRESS".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* A function of the interpreter, if it is there. */
#define PYTHON(name) ((name##_type)dlsym(RTLD_DEFAULT, #name))

typedef void *(*PyGILState_GetThisThreadState_type)(void);
typedef int (*PyGILState_Ensure_type)(void);
typedef void (*PyGILState_Release_type)(int);
typedef void *(*PyEval_GetFrame_type)(void);
typedef int (*PyFrame_GetLineNumber_type)(void *);
typedef void *(*PyFrame_GetCode_type)(void *);
typedef void *(*PyObject_GetAttrString_type)(void *, const char *);
typedef const char *(*PyUnicode_AsUTF8_type)(void *);
typedef void (*Py_DecRef_type)(void *);

static FILE *notes(void) {
    static FILE *file;
    if (!file)
        file = fopen(getenv("LINES"), "w");
    return file;
}

/* Where the thread is in Python: what it calls may let others run meanwhile. */
static void place(char *text, size_t room) {
    snprintf(text, room, "-");
    PyGILState_GetThisThreadState_type state = PYTHON(PyGILState_GetThisThreadState);
    if (!state || !state())
        return;
    int held = PYTHON(PyGILState_Ensure)();
    void *frame = PYTHON(PyEval_GetFrame)();
    if (frame) {
        void *code = PYTHON(PyFrame_GetCode)(frame);
        void *file = PYTHON(PyObject_GetAttrString)(code, "co_filename");
        snprintf(text, room, "%s:%d", PYTHON(PyUnicode_AsUTF8)(file),
                 PYTHON(PyFrame_GetLineNumber)(frame));
        PYTHON(Py_DecRef)(file);
        PYTHON(Py_DecRef)(code);
    }
    PYTHON(PyGILState_Release)(held);
}

int cudaMalloc(void **to, size_t size) {
    static int (*next)(void **, size_t);
    char text[4096];
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "cudaMalloc");
    place(text, sizeof text);
    /* In the order in which the library serves them. */
    pthread_mutex_lock(&one_at_a_time);
    int code = next(to, size);
    if (!code && *to) {
        fprintf(notes(), "+ %p %zu %s\n", *to, size, text);
        fflush(notes());
    }
    pthread_mutex_unlock(&one_at_a_time);
    return code;
}

int cudaFree(void *address) {
    static int (*next)(void *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "cudaFree");
    pthread_mutex_lock(&one_at_a_time);
    int code = next(address);
    if (!code && address) {
        fprintf(notes(), "- %p\n", address);
        fflush(notes());
    }
    pthread_mutex_unlock(&one_at_a_time);
    return code;
}
