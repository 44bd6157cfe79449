/*
 * vramalloc: memory of a GPU, page-locked and pageable memory of the host.
 *
 * Link with libvramalloc.so (pkg-config: vramalloc), or preload it under a
 * program that is not linked with it and find the functions by dlsym. Linked
 * before libc or preloaded, the library also stands in front of CUDA's own
 * memory functions; see docs/c-api.md.
 *
 * All functions may be called by any thread. None calls back, none throws but
 * vramalloc_torch_malloc, none prints but one line where memory runs out.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef VRAMALLOC_H
#define VRAMALLOC_H

/* Made by scripts/header from the comments in cabi/src/api/; do not edit. */

#include <stddef.h>
#include <stdint.h>

/**
 * The version that this header is of: 10000 times the major version, 100
 * times the minor one and the patch.
 */
#define VRAMALLOC_VERSION 100

/**
 * It is done.
 */
#define VRAMALLOC_SUCCESS 0

/**
 * An argument is null that must not be, or out of its range.
 */
#define VRAMALLOC_INVALID_ARGUMENT -1

/**
 * No block that this library handed out begins at the address: it is of
 * another allocator, was freed before, or points into a block.
 */
#define VRAMALLOC_NOT_OURS -2

/**
 * The buffer is too small for the text; the length it needs was written.
 */
#define VRAMALLOC_TOO_SMALL -3

/**
 * There is nothing of this name.
 */
#define VRAMALLOC_UNKNOWN_NAME -4

/**
 * It cannot be set, or cannot be set any more.
 */
#define VRAMALLOC_READ_ONLY -5

/**
 * The text cannot be read as a value of what it was given for.
 */
#define VRAMALLOC_INVALID_VALUE -6

/**
 * There is no CUDA driver.
 */
#define VRAMALLOC_NO_CUDA -7

/**
 * The process is a child by fork of one that used this library: memory is
 * its parent's.
 */
#define VRAMALLOC_FORKED -8

/**
 * The thread is inside another call of this library: from a signal handler
 * or a callback of the driver nothing can be asked.
 */
#define VRAMALLOC_REENTERED -9

/**
 * The library met an error of its own, and has said a line about it on
 * standard error. It serves no more; what it holds, it keeps.
 */
#define VRAMALLOC_BROKEN -10

/**
 * A file could not be written; errno says why.
 */
#define VRAMALLOC_IO -11

/**
 * A thread's scopes end in the reverse order of their beginnings, and in the
 * thread that began them.
 */
#define VRAMALLOC_WRONG_SCOPE -12

/**
 * The device of the context that is current on the calling thread. Where
 * none is, a shared CUDA runtime in the process is initialised as by a first
 * call of its own, and its device is the place; without one the answer is
 * 201, CUDA's code for no context.
 */
#define VRAMALLOC_CURRENT_DEVICE -1

/**
 * Host memory that is page-locked, for every context.
 */
#define VRAMALLOC_PINNED -2

/**
 * Host memory as malloc gives it. CUDA is not needed for it.
 */
#define VRAMALLOC_PAGEABLE -3

/**
 * What a function of this library answers: `VRAMALLOC_SUCCESS`; above it the
 * code of CUDA that the driver answered with, unchanged (2 is "out of
 * memory"); below it one of the library's own.
 */
typedef int vramalloc_result;

/**
 * Where memory lies: the ordinal of a device (0 and up, as CUDA counts them
 * in this process), or one of this library's own places.
 */
typedef int vramalloc_place;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that is loaded, such as "0.1.0".
 *
 * The text is the library's own and stays. May be called at any time, also
 * before CUDA is initialised, in a forked child, during a capture and from a
 * signal handler.
 */
const char *vramalloc_version(void);

/**
 * The version of the library that is loaded as a number, made up as
 * `VRAMALLOC_VERSION`, to be compared with it. May be called at any time, as
 * `vramalloc_version`.
 */
int vramalloc_version_number(void);

/**
 * The name of a code: "VRAMALLOC_NOT_OURS", or CUDA's own name for one of
 * CUDA's codes, or "unknown" for what neither knows (CUDA's are known once
 * its driver is loaded). The text stays and belongs to whoever names it.
 *
 * May be called at any time, but not from a signal handler.
 */
const char *vramalloc_error_name(vramalloc_result code);

/**
 * Gets `size` bytes of memory at `place` and writes their address to
 * `*address`.
 *
 * The address is a multiple of 512 on a device and for pageable memory, of
 * 256 at least for pinned memory; the contents are undefined. On a device
 * the block counts against the option `limit` and can be used by every
 * stream of its context. The caller owns it until `vramalloc_free`. Where
 * `size` is 0, null is written.
 *
 * Device memory comes from the context that is current on the thread, if
 * that is on the device, else from the device's primary context; what is
 * current does not change. It is pooled where the library was preloaded or
 * the program is linked with it. Where it was loaded by dlopen, each call
 * here is one of the driver's: then use `vramalloc_malloc_on_stream`.
 *
 * May be called before CUDA is initialised, which it then is; during a
 * capture, which it does not disturb; by any thread; not in a forked child
 * (pageable memory neither) and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `address` or an unknown
 * place, `VRAMALLOC_NO_CUDA`, or CUDA's code, as 2 for out of memory (which
 * for pageable memory the system says); `*address` is null then.
 *
 * The caller promises that `address`, where it is not null, may be written to.
 */
vramalloc_result vramalloc_malloc(size_t size, vramalloc_place place, void **address);

/**
 * Frees memory that this library handed out: by `vramalloc_malloc` at any
 * place, by `vramalloc_malloc_on_stream`, or by CUDA's functions where it
 * stands in front of them. Which place it is in, the address says; whichever
 * device is current. Null is nothing to free.
 *
 * Work on the device that was submitted before the call may still use
 * the memory: it is handed out again only when all of that is done (for
 * memory of a stream, when what that stream's rules ask is done). The host
 * must not touch host memory after the call, but copies that the device
 * still makes may.
 *
 * May be called during a capture and by any thread; not in a forked child
 * and not from a signal handler.
 *
 * Errors: `VRAMALLOC_NOT_OURS`, and nothing is changed; or CUDA's code.
 *
 * The caller promises that nothing which comes after the call uses the memory.
 */
vramalloc_result vramalloc_free(void *address);

/**
 * Gives what is cached at `place` and no block lies in back to CUDA (or to
 * the system), and writes how many bytes that were to `*released`, where that
 * is not null. On a device it first waits until all that was freed there is
 * out of use, in all contexts of this process.
 *
 * May be called before CUDA is initialised (0 bytes, and nothing is
 * initialised), by any thread, and during a capture, which it does not
 * disturb; not in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for an unknown place.
 *
 * The caller promises that `released`, where it is not null, may be written to.
 */
vramalloc_result vramalloc_empty_cache(vramalloc_place place, uint64_t *released);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VRAMALLOC_H */
