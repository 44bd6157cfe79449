/*
 * vramalloc: memory of a GPU, page-locked and pageable memory of the host.
 *
 * Link with libvramalloc.so (pkg-config: vramalloc), or preload it under a
 * program that is not linked with it and find the functions by dlsym. Linked
 * before libc or preloaded, the library also stands in front of CUDA's own
 * memory functions; examples/ has a program for each part.
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
#define VRAMALLOC_VERSION 200

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
 * What CUDA's stream handles point to.
 */
typedef struct CUstream_st CUstream_st;

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

/**
 * A stream: a cudaStream_t or a CUstream. Null is the legacy default stream;
 * a thread's own default stream is cudaStreamPerThread.
 */
typedef struct CUstream_st *vramalloc_stream;

/**
 * A buffer that is asked for as the member of a group.
 */
typedef struct vramalloc_member {
    /**
     * Its size in bytes, above 0.
     */
    size_t size;
    /**
     * Its name, or null. The part before its first dot is its layer.
     */
    const char *name;
    /**
     * The number of its layer, where it has no name.
     */
    uint64_t layer;
} vramalloc_member;

/**
 * A group, by its number; 0 is none.
 */
typedef uint64_t vramalloc_group;

/**
 * A scope, by its number; 0 is none.
 */
typedef uint64_t vramalloc_scope;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that is loaded, such as "0.2.0".
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
 * here is one of the driver's.
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
 * place, or by CUDA's functions where it stands in front of them. Which place
 * it is in, the address says; whichever device is current. Null is nothing to
 * free. Where the library stands in front, CUDA's own functions free it just as
 * well.
 *
 * Work on the device that was submitted before the call may still use
 * the memory: it is handed out again only when all of that is done. The host
 * must not touch host memory after the call, but copies that the device
 * still makes may.
 *
 * May be called during a capture and by any thread; not in a forked child
 * and not from a signal handler.
 *
 * Errors: `VRAMALLOC_NOT_OURS`, and nothing is changed (also for a member of
 * a group, which goes with it); or CUDA's code.
 *
 * The caller promises that nothing which comes after the call uses the memory.
 */
vramalloc_result vramalloc_free(void *address);

/**
 * Gets `size` bytes on a device for one stream and writes their address to
 * `*address`.
 *
 * The block is used on `stream`. If other streams use it too,
 * `vramalloc_record_stream` must be told of each before the block is freed.
 * In return the stream can get it again at once after `vramalloc_free`, without
 * any waiting: its own order protects the block. Other streams get the memory
 * only after its stream, and the recorded ones, are done with it. Memory is
 * pooled for each stream and taken as it is needed, whatever the strategy
 * (under `passthrough` each call is the driver's); where the driver has no
 * more, what is idle in other pools goes back to it.
 *
 * While the stream captures a graph the block becomes part of the graph. Once
 * freed it serves the same stream in the same capture, and after that nobody
 * until `vramalloc_release_captures`.
 *
 * Place, alignment, ownership and errors are those of `vramalloc_malloc`;
 * places of the host are invalid. The block belongs to the calling thread's
 * scope, if it is in one. It may be called when that may.
 *
 * The caller promises that `address`, where it is not null, may be written
 * to, and that the stream is alive.
 */
vramalloc_result vramalloc_malloc_on_stream(size_t size,
                                            vramalloc_place place,
                                            vramalloc_stream stream,
                                            void **address);

/**
 * Says that work on `stream` uses the block at `address`, which
 * `vramalloc_malloc_on_stream` gave for another stream: after its free it
 * waits for all that `stream` was given until then. For other memory of
 * this library it does nothing, as its free waits for every stream.
 *
 * The stream may be destroyed before the block is freed where the library was
 * preloaded or linked with; where it was loaded by dlopen it may not.
 *
 * May be called during a capture and by any thread; not in a forked child and
 * not from a signal handler.
 *
 * Errors: `VRAMALLOC_NOT_OURS` where no block of this library begins there.
 *
 * The caller promises that the stream is alive.
 */
vramalloc_result vramalloc_record_stream(void *address, vramalloc_stream stream);

/**
 * Says that no graph which was captured so far on the device will be launched
 * again: what was allocated in these captures and is free can be used
 * otherwise. Writes how many bytes went back to CUDA to `*released`, where
 * that is not null.
 *
 * May be called by any thread; not in a forked child, not from a signal
 * handler and not while the device's streams capture.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for an unknown place or one of the
 * host.
 *
 * The caller promises what it says, and that `released`, where it is not
 * null, may be written to.
 */
vramalloc_result vramalloc_release_captures(vramalloc_place place, uint64_t *released);

/**
 * Gets memory at `place` for `count` buffers that live and die together,
 * packed into few allocations, and writes their addresses to `addresses`, in
 * the order of `members`, and the group's number to `*group`.
 *
 * Members of one layer lie in one allocation; how many layers share one is
 * said by the options `fuse_parameter_memory_size` (negative: one; 0: all;
 * else as many as it takes to reach so many MiB) and
 * `fuse_parameter_groups_size` (above 1: an allocation also ends with the
 * layer that makes it more members than this), as in Paddle. With a size of 0
 * members lie in the order of their names. Each starts at a multiple of 256.
 *
 * The caller owns the group until `vramalloc_group_free`; a member is not
 * freed by itself, and CUDA's functions refuse it where the library stands in
 * front of them.
 *
 * May be called when `vramalloc_malloc` may.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null argument, no members, one
 * of 0 bytes, or an unknown place; else as `vramalloc_malloc`. `*group` is 0
 * then and nothing is held.
 *
 * The caller promises `count` members with names that end in zero, and room
 * for as many addresses and a group, where they are not null.
 */
vramalloc_result vramalloc_group_malloc(const struct vramalloc_member *members,
                                        size_t count,
                                        vramalloc_place place,
                                        void **addresses,
                                        vramalloc_group *group);

/**
 * Writes to `*count` how many allocations a group has.
 *
 * May be called when `vramalloc_malloc` may. Errors:
 * `VRAMALLOC_INVALID_ARGUMENT` for a null `count`, `VRAMALLOC_NOT_OURS` where
 * there is no such group.
 *
 * The caller promises that `count`, where it is not null, may be written to.
 */
vramalloc_result vramalloc_group_allocations(vramalloc_group group, size_t *count);

/**
 * Frees all members of a group, as `vramalloc_free` would, and the group. 0 is
 * nothing to free.
 *
 * May be called when `vramalloc_free` may. Errors: `VRAMALLOC_NOT_OURS` where
 * there is no such group; or the code of the first free that failed, after
 * all others.
 *
 * The caller promises that nothing which comes after the call uses the memory.
 */
vramalloc_result vramalloc_group_free(vramalloc_group group);

/**
 * Begins a scope of the calling thread, inside the one that it is in, and
 * writes its number to `*scope`.
 *
 * What the thread gets from then on from `vramalloc_malloc`,
 * `vramalloc_malloc_on_stream` and `vramalloc_group_malloc`, until it ends the
 * scope or begins another inside it, belongs to the scope. It may be freed one
 * by one before, by any thread, and by CUDA's functions where the library
 * stands in front of them; what is left is freed with the scope. Other threads
 * do not notice. What CUDA's functions give belongs to no scope.
 *
 * A scope that its thread has not ended when the thread ends is never ended,
 * and its memory stays live.
 *
 * May be called before CUDA is initialised, during a capture and by any
 * thread; not in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `scope`.
 *
 * The caller promises that `scope`, where it is not null, may be written to.
 */
vramalloc_result vramalloc_scope_begin(vramalloc_scope *scope);

/**
 * Ends the calling thread's innermost scope, which must be `scope`, and frees
 * all that belongs to it, as `vramalloc_free` would: before it returns, or
 * with the option `eager_delete_scope` off, by a thread of the library.
 * `vramalloc_empty_cache`, the control `trim` and a request that finds no
 * memory wait for that thread.
 *
 * May be called when `vramalloc_scope_begin` may.
 *
 * Errors: `VRAMALLOC_WRONG_SCOPE`, and nothing is changed; or the code of the
 * first free that failed, after all others.
 *
 * The caller promises that nothing which comes after the call uses the memory.
 */
vramalloc_result vramalloc_scope_end(vramalloc_scope scope);

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

/**
 * Writes the statistics of this process as they are now to `*text`: the JSON
 * that docs/statistics.md explains, with "final" false and without the
 * snapshot, which `vramalloc_dump` writes, ending in zero. The caller owns the
 * text until `vramalloc_free_text`.
 *
 * May be called before CUDA is initialised, by any thread, and during a
 * capture; no CUDA function is called. Not in a forked child and not from a
 * signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `text`; `*text` is null
 * after any error.
 *
 * The caller promises that `text`, where it is not null, may be written to.
 */
vramalloc_result vramalloc_statistics(char **text);

/**
 * Frees a text that `vramalloc_statistics` wrote; null is nothing to free.
 * May be called at any time but from a signal handler.
 *
 * The caller promises that it is such a text, and frees it once.
 */
void vramalloc_free_text(char *text);

/**
 * Writes the statistics of this process as they are now to the file that
 * `pattern` names, as the option `stats` does ("%e" program, "%p" process,
 * "%h" host, "%r" rank, "%%" a percent sign; also "stderr" and "off"). Null: to
 * where that option says. The file appears under its name when it is whole.
 *
 * May be called when `vramalloc_statistics` may.
 *
 * Errors: `VRAMALLOC_INVALID_VALUE` for a pattern that cannot be read,
 * `VRAMALLOC_IO`.
 *
 * The caller promises that `pattern`, where it is not null, ends in zero.
 */
vramalloc_result vramalloc_dump(const char *pattern);

/**
 * Asks the library for something by name, has it done, or sets it.
 *
 * | name | without a value | with one |
 * |---|---|---|
 * | `version` | the library's version | |
 * | `statistics` | the JSON of `vramalloc_statistics` | |
 * | `option.<key>` | the option's value in force | sets it |
 * | `device.<n>.live` | bytes in blocks that are held | |
 * | `device.<n>.cached` | bytes that could be handed out again | |
 * | `device.<n>.limbo` | freed bytes that may be in use still | |
 * | `device.<n>.idle` | bytes that `trim` would give back, if out of use | |
 * | `device.<n>.reserved` | bytes that CUDA gave | |
 * | `device.<n>.limit` | the limit in bytes, or `none` | |
 * | `flush` | makes available what is out of use; does not wait | |
 * | `trim` | `vramalloc_empty_cache` at all places; the bytes given back | |
 * | `dump` | `vramalloc_dump` | with this pattern |
 *
 * Keys of options are those of docs/options.md, or the frameworks' names for
 * them. Before memory was first asked for, each that has an effect can be
 * set; afterwards `limit` (idle memory beyond a lower one is given back),
 * `stats`, `fuse_parameter_groups_size`, `fuse_parameter_memory_size` and
 * `eager_delete_scope`.
 *
 * The answer is a text (a number in decimal, or nothing), written to `buffer`
 * with a zero at its end, and its length with the zero to `*length`. Each of
 * the two may be null, where it is not wanted.
 *
 * May be called before CUDA is initialised, by any thread, and during a
 * capture; not in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `name`,
 * `VRAMALLOC_UNKNOWN_NAME`, `VRAMALLOC_READ_ONLY`, `VRAMALLOC_INVALID_VALUE`,
 * `VRAMALLOC_IO`; `VRAMALLOC_TOO_SMALL` where the answer does not fit into
 * `capacity` bytes: what was asked for is done then, and the length written.
 *
 * The caller promises that texts end in zero, that `buffer` has room for
 * `capacity` bytes and that `length` may be written to, where they are not
 * null.
 */
vramalloc_result vramalloc_ctl(const char *name,
                               const char *value,
                               char *buffer,
                               size_t capacity,
                               size_t *length);

/**
 * Gets memory for a tensor that is used on `stream` of the device with this
 * ordinal. Fits as the first function of `torch.cuda.memory.CUDAPluggableAllocator`.
 *
 * PyTorch does not tell an allocator of `Tensor.record_stream` unless it was
 * given a function for that. Until `vramalloc_torch_hook` was asked for that
 * function memory comes as from `vramalloc_malloc`, which is safe with any
 * number of streams; from then on as from `vramalloc_malloc_on_stream`, which
 * is faster and needs no preload. While the stream captures a graph memory is
 * kept for the graph in both cases, as `vramalloc_malloc_on_stream` says.
 *
 * PyTorch does not look whether it got memory. So where there is none, this
 * function throws std::bad_alloc, which becomes an exception of Python, if the
 * C++ library is in the process; else it answers null. Null is also the
 * answer to 0 bytes.
 *
 * May be called when `vramalloc_malloc` may.
 *
 * The caller promises that the stream is alive.
 */
void *vramalloc_torch_malloc(ptrdiff_t size, int device, vramalloc_stream stream);

/**
 * Frees memory of `vramalloc_torch_malloc`. Fits as the second function of
 * `torch.cuda.memory.CUDAPluggableAllocator`. All but the address is ignored;
 * null is nothing to free.
 *
 * May be called when `vramalloc_free` may.
 *
 * The caller promises that nothing which comes after the call uses the memory.
 */
void vramalloc_torch_free(void *address,
                          ptrdiff_t _size,
                          int _device,
                          vramalloc_stream _stream);

/**
 * A further function for PyTorch's allocator object, by its name: the address
 * to be given to the `set_` method in the second column, or null for any other
 * name.
 *
 * | name | method | what it does |
 * |---|---|---|
 * | `record_stream` | `set_record_stream_fn` | `vramalloc_record_stream`; asking for it is the promise that the method is called |
 * | `empty_cache` | `set_reset_fn` | `vramalloc_empty_cache` on all devices |
 * | `begin_pool` | `set_begin_allocate_to_pool` | captures that follow share memory, as PyTorch's graphs with one pool do |
 * | `end_pool` | `set_end_allocate_to_pool_fn` | they no longer do |
 * | `release_pool` | `set_release_pool` | the memory of a pool is free when all its graphs are gone |
 *
 * May be called at any time but from a signal handler.
 *
 * The caller promises that `name`, where it is not null, ends in zero.
 */
void *vramalloc_torch_hook(const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VRAMALLOC_H */
