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
 * The version of this header: 10000 times the major version, plus 100 times
 * the minor one, plus the patch.
 */
#define VRAMALLOC_VERSION 200

/**
 * The call succeeded.
 */
#define VRAMALLOC_SUCCESS 0

/**
 * An argument is null that must not be, or out of its range.
 */
#define VRAMALLOC_INVALID_ARGUMENT -1

/**
 * No block that this library handed out begins at the address: it belongs to
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
 * The text is no valid value of what it was given for.
 */
#define VRAMALLOC_INVALID_VALUE -6

/**
 * There is no CUDA driver.
 */
#define VRAMALLOC_NO_CUDA -7

/**
 * The process is a child by fork of one that used this library: memory is its
 * parent's.
 */
#define VRAMALLOC_FORKED -8

/**
 * The thread is inside another call of this library: nothing can be asked from
 * a signal handler or a callback of the driver.
 */
#define VRAMALLOC_REENTERED -9

/**
 * The library met an error of its own, and has printed a line about it on
 * standard error. It serves no more requests, and keeps what it holds.
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
 * Not now: the memory is paused, or the thread is in no region.
 */
#define VRAMALLOC_INVALID_STATE -13

/**
 * The device of the context that is current on the calling thread. If there is
 * none, a shared CUDA runtime in the process is initialised as by a first call
 * of its own, and its device is the place; without such a runtime the result
 * is 201, CUDA's code for no context.
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
 * What a region's memory holds is the same after a pause.
 */
#define VRAMALLOC_KEEP 0

/**
 * What a region's memory holds is lost in a pause, which then copies nothing: for
 * what the program can make again.
 */
#define VRAMALLOC_DROP 1

/**
 * A flag of `vramalloc_resume`: the host memory that held what was paused goes back to
 * the system. Without it, it is kept for the next pause.
 */
#define VRAMALLOC_DROP_BACKUPS 1

/**
 * The number of a block whose request has no call stack: stacks are taken only where
 * the option `stacks` or `oom_report` says so.
 */
#define VRAMALLOC_NO_STACK UINT32_MAX

/**
 * What CUDA's stream handles point to.
 */
typedef struct CUstream_st CUstream_st;

/**
 * The result of a function of this library: `VRAMALLOC_SUCCESS`; above it
 * CUDA's code, as the driver returned it (2 is "out of memory"); below it a
 * code of the library's own.
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
 * A buffer to be allocated as the member of a group.
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
     * The number of its layer, if it has no name.
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

/**
 * What `vramalloc_pause` or `vramalloc_resume` did.
 */
typedef struct vramalloc_paused {
    /**
     * Set by the caller to `sizeof(vramalloc_paused)`: no more is written.
     */
    size_t struct_size;
    /**
     * Bytes that went to the device, or came from it.
     */
    uint64_t bytes;
    /**
     * Bytes that were copied to the host, or from there.
     */
    uint64_t copied;
    /**
     * Bytes that a pause left where they are, since their addresses would have gone
     * with them: plain allocations of the driver's.
     */
    uint64_t stays_plain;
    /**
     * The same, since the program has given others a handle of them.
     */
    uint64_t stays_exported;
    /**
     * The same, since the driver refused.
     */
    uint64_t stays_refused;
    /**
     * Whether any of the memory is paused now: also written after an error.
     */
    int is_paused;
} vramalloc_paused;

/**
 * A block of a device's memory, and how much there is to say of it.
 */
typedef struct vramalloc_block {
    /**
     * Set by the caller to `sizeof(vramalloc_block)`: no more is written.
     */
    size_t struct_size;
    /**
     * Where the block begins.
     */
    void *address;
    /**
     * Its bytes, and those of them that were asked for.
     */
    size_t size;
    size_t requested;
    /**
     * How many places of machine code its call stack has.
     */
    size_t calls;
    /**
     * The length of the text about its places of Python, with the zero.
     */
    size_t python;
    /**
     * The device that it is on.
     */
    vramalloc_place place;
    /**
     * The number of its call stack in the statistics ("call_stacks"), or
     * `VRAMALLOC_NO_STACK`.
     */
    uint32_t stack;
} vramalloc_block;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that is loaded, such as "0.2.0".
 *
 * The text belongs to the library and stays valid. May be called at any time,
 * also before CUDA is initialised, in a forked child, during a capture and
 * from a signal handler.
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
 * CUDA's codes, or "unknown" for what neither knows (CUDA's are known once its
 * driver is loaded). The text stays valid and belongs to the library or the
 * driver.
 *
 * May be called at any time, but not from a signal handler.
 */
const char *vramalloc_error_name(vramalloc_result code);

/**
 * Allocates `size` bytes of memory at `place` and writes their address to
 * `*address`.
 *
 * The address is a multiple of 512 on a device and for pageable memory, of 256
 * at least for pinned memory; the contents are undefined. On a device the
 * block counts against the option `limit` and can be used by every stream of
 * its context. The caller owns it until `vramalloc_free`. If `size` is 0, null
 * is written.
 *
 * Device memory comes from the context that is current on the thread, if that
 * is on the device, else from the device's primary context; what is current
 * does not change. It is pooled if the library was preloaded or the program is
 * linked with it. If it was loaded by dlopen, each call here is one of the
 * driver's.
 *
 * May be called before CUDA is initialised, and then initialises it; during a
 * capture, which it does not disturb; by any thread; not in a forked child
 * (not even for pageable memory) and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `address` or an unknown
 * place, `VRAMALLOC_INVALID_STATE` while the memory is paused, `VRAMALLOC_NO_CUDA`,
 * or CUDA's code, such as 2 for out of memory
 * (also for pageable memory, if the system has none). After an error
 * `*address` is null.
 *
 * The caller promises that `address`, if it is not null, may be written to.
 */
vramalloc_result vramalloc_malloc(size_t size, vramalloc_place place, void **address);

/**
 * Frees memory that this library handed out: by `vramalloc_malloc` at any
 * place, or by CUDA's functions if it stands in front of them. The address
 * says which place it is in, whichever device is current. For null it does
 * nothing. If the library stands in front, CUDA's own functions free the
 * memory just as well.
 *
 * Work on the device that was submitted before the call may still use
 * the memory: it is handed out again only when all of that is done. The host
 * must not touch host memory after the call, but copies that the device
 * still makes may.
 *
 * May be called during a capture and by any thread; not in a forked child
 * and not from a signal handler.
 *
 * Errors: `VRAMALLOC_NOT_OURS`, and nothing is changed (also for a member of a
 * group, which is freed with it); or CUDA's code.
 *
 * The caller promises that nothing which comes after the call uses the memory.
 */
vramalloc_result vramalloc_free(void *address);

/**
 * Allocates `size` bytes on a device for one stream and writes their address
 * to `*address`.
 *
 * The block is used on `stream`. If other streams use it too,
 * `vramalloc_record_stream` must be called for each before the block is freed.
 * In return the stream can get it again at once after `vramalloc_free`,
 * without any waiting: its own order protects the block. Other streams get the
 * memory only after its stream, and the recorded ones, are done with it.
 * Memory is pooled for each stream and taken as it is needed, whatever the
 * strategy (under `passthrough` each call is the driver's); if the driver has
 * no more, idle memory of other pools goes back to it.
 *
 * While the stream captures a graph the block becomes part of the graph. Once
 * freed it serves the same stream in the same capture, and after that no
 * request until `vramalloc_release_captures`.
 *
 * Place, alignment, ownership and errors are those of `vramalloc_malloc`;
 * places of the host are invalid. The block belongs to the calling thread's
 * scope, if it is in one. May be called when `vramalloc_malloc` may.
 *
 * The caller promises that `address`, if it is not null, may be written to,
 * and that the stream is alive.
 */
vramalloc_result vramalloc_malloc_on_stream(size_t size,
                                            vramalloc_place place,
                                            vramalloc_stream stream,
                                            void **address);

/**
 * Tells the library that work on `stream` uses the block at `address`, which
 * `vramalloc_malloc_on_stream` gave for another stream: once freed, the block
 * waits for all work that `stream` was given until then. For other memory of
 * this library it does nothing, as its free waits for every stream.
 *
 * If the library was preloaded or linked with, the stream may be destroyed
 * before the block is freed; if it was loaded by dlopen, it may not.
 *
 * May be called during a capture and by any thread; not in a forked child and
 * not from a signal handler.
 *
 * Errors: `VRAMALLOC_NOT_OURS` if no block of this library begins there.
 *
 * The caller promises that the stream is alive.
 */
vramalloc_result vramalloc_record_stream(void *address, vramalloc_stream stream);

/**
 * Tells the library that no graph which was captured so far on the device will
 * be launched again: memory that was allocated in these captures and is free
 * can be used for anything. Writes how many bytes went back to CUDA to
 * `*released`, if that is not null.
 *
 * May be called by any thread; not in a forked child, not from a signal
 * handler and not while the device's streams capture.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for an unknown place or one of the
 * host.
 *
 * The caller promises what it says, and that `released`, if it is not null,
 * may be written to.
 */
vramalloc_result vramalloc_release_captures(vramalloc_place place, uint64_t *released);

/**
 * Allocates memory at `place` for `count` buffers that live and die together,
 * packed into few allocations. Writes their addresses to `addresses`, in the
 * order of `members`, and the group's number to `*group`.
 *
 * Members of one layer lie in one allocation. How many layers share one is
 * said by two options, as in Paddle: `fuse_parameter_memory_size` (negative:
 * one; 0: all; else as many as it takes to reach so many MiB) and
 * `fuse_parameter_groups_size` (above 1: an allocation also ends with the
 * layer that makes it more members than this). With a size of 0 members lie in
 * the order of their names. Each starts at a multiple of 256.
 *
 * The caller owns the group until `vramalloc_group_free`. A member is not
 * freed by itself, and CUDA's functions refuse it if the library stands before
 * them.
 *
 * May be called when `vramalloc_malloc` may.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null argument, no members, one of
 * 0 bytes, or an unknown place; else as `vramalloc_malloc`. After an error
 * `*group` is 0 and nothing is held.
 *
 * The caller promises `count` members with names that end in zero, and room
 * for as many addresses and a group, if they are not null.
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
 * `VRAMALLOC_INVALID_ARGUMENT` for a null `count`, `VRAMALLOC_NOT_OURS` if
 * there is no such group.
 *
 * The caller promises that `count`, if it is not null, may be written to.
 */
vramalloc_result vramalloc_group_allocations(vramalloc_group group, size_t *count);

/**
 * Frees all members of a group, as `vramalloc_free` would, and the group. For
 * 0 it does nothing.
 *
 * May be called when `vramalloc_free` may. Errors: `VRAMALLOC_NOT_OURS` if
 * there is no such group; or the code of the first free that failed, after all
 * others were tried.
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
 * scope or begins another inside it, belongs to the scope. Any thread may free
 * it before, one by one, also by CUDA's functions if the library stands in
 * front of them; what is left is freed with the scope. Other threads are not
 * affected. What CUDA's functions give belongs to no scope.
 *
 * A scope that its thread has not ended when the thread ends is never ended,
 * and its memory stays live.
 *
 * May be called before CUDA is initialised, during a capture and by any
 * thread; not in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `scope`.
 *
 * The caller promises that `scope`, if it is not null, may be written to.
 */
vramalloc_result vramalloc_scope_begin(vramalloc_scope *scope);

/**
 * Ends the calling thread's innermost scope, which must be `scope`, and frees
 * all that belongs to it, as `vramalloc_free` would: before it returns or,
 * with the option `eager_delete_scope` off, by a thread of the library.
 * `vramalloc_empty_cache`, the control `trim` and a request that finds no
 * memory wait for that thread.
 *
 * May be called when `vramalloc_scope_begin` may.
 *
 * Errors: `VRAMALLOC_WRONG_SCOPE`, and nothing is changed; or the code of the
 * first free that failed, after all others were tried.
 *
 * The caller promises that nothing which comes after the call uses the memory.
 */
vramalloc_result vramalloc_scope_end(vramalloc_scope scope);

/**
 * Begins a region of the calling thread, inside the one that it is in: device memory
 * that the thread gets from then on, by this API or by CUDA's functions if the library
 * stands in front of them, bears `tag`, until `vramalloc_region_end`. Not so memory of
 * a stream that captures a graph, and page-locked memory of the host.
 *
 * `contents` is `VRAMALLOC_KEEP` or `VRAMALLOC_DROP`. Memory of different tags never
 * shares a page of the device. Any thread may free it. Tags are copied, and known
 * until the process ends: use few.
 *
 * May be called before CUDA is initialised, during a capture and by any thread; not
 * in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null or empty `tag`, for unknown
 * `contents`, and in more than 16 regions inside each other.
 *
 * The caller promises that `tag` ends in zero, if it is not null.
 */
vramalloc_result vramalloc_region_begin(const char *tag, int contents);

/**
 * Ends the calling thread's innermost region. Its memory stays as it is.
 *
 * May be called when `vramalloc_region_begin` may.
 *
 * Errors: `VRAMALLOC_INVALID_STATE` if the thread is in none.
 */
vramalloc_result vramalloc_region_end(void);

/**
 * Gives memory of the device at `place` to the device, while its addresses stay:
 * what bears `tag`; with the tag "" what was asked for in no region; with null all.
 * What live blocks hold is saved on the host, unless their region drops it. Free
 * memory goes too. Other processes, and memory that bears another tag, can use the room.
 *
 * It first waits for all work of the process, on all devices. The strategy `mapped` is
 * needed. What cannot go is written to `*paused`, which may be null, by its reason.
 * Until `vramalloc_resume`, blocks can be freed, and requests for memory of this tag
 * fail: here with `VRAMALLOC_INVALID_STATE`, in CUDA's functions with out of memory.
 * Pausing what is paused does nothing and succeeds. A capture that another thread
 * begins meanwhile waits until it is done.
 *
 * May be called by any thread; not in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a place that is no device or a
 * `struct_size` that is none; 900 while a stream captures a graph; 801 where the strategy
 * in force maps no memory; else CUDA's code, such as 2 where the host has no memory for
 * what is to be saved. After an error nothing has changed, but that contents which a
 * region drops may be gone; only where the driver refuses to undo what was done as well,
 * memory is paused, as `is_paused` says.
 *
 * The caller promises that no work uses the memory until it is resumed, not even work
 * of graphs, and that `tag` ends in zero and `paused` may be written to, if they are
 * not null.
 */
vramalloc_result vramalloc_pause(vramalloc_place place,
                                 const char *tag,
                                 struct vramalloc_paused *paused);

/**
 * Takes the memory from the device again that `vramalloc_pause` gave it, for the same
 * addresses, and copies what blocks held back. So graphs that use them can be launched
 * as they are. Resuming what is not paused does nothing and succeeds.
 *
 * `flags` is 0 or `VRAMALLOC_DROP_BACKUPS`. What was done is written to `*resumed`,
 * which may be null.
 *
 * May be called when `vramalloc_pause` may.
 *
 * Errors: as `vramalloc_pause`, and 2 where the device, or the option `limit`, has not
 * enough memory. After an error the memory is paused as before, but for what the driver
 * refuses to unmap again: that stays on the device, and the next resume finds it there.
 *
 * The caller promises that `tag` ends in zero and `resumed` may be written to, if they
 * are not null.
 */
vramalloc_result vramalloc_resume(vramalloc_place place,
                                  const char *tag,
                                  int flags,
                                  struct vramalloc_paused *resumed);

/**
 * Gives cached memory at `place` in which no block lies back to CUDA (or to
 * the system), and writes how many bytes that was to `*released`, if that is
 * not null. On a device it first waits until all memory that was freed there
 * is out of use, in all contexts of this process.
 *
 * May be called before CUDA is initialised (0 bytes, and nothing is
 * initialised), by any thread, and during a capture, which it does not
 * disturb; not in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for an unknown place.
 *
 * The caller promises that `released`, if it is not null, may be written to.
 */
vramalloc_result vramalloc_empty_cache(vramalloc_place place, uint64_t *released);

/**
 * Writes the statistics of this process as they are now to `*text`: the JSON
 * that docs/statistics.md explains, with a zero at its end, "final" false and
 * without the snapshot, which `vramalloc_dump` writes. The caller owns the
 * text until `vramalloc_free_text`.
 *
 * May be called before CUDA is initialised, by any thread, and during a
 * capture; no CUDA function is called. Not in a forked child and not from a
 * signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `text`; `*text` is null
 * after any error.
 *
 * The caller promises that `text`, if it is not null, may be written to.
 */
vramalloc_result vramalloc_statistics(char **text);

/**
 * Frees a text that `vramalloc_statistics` wrote; for null it does nothing.
 * May be called at any time but from a signal handler.
 *
 * The caller promises that it is such a text, and frees it once.
 */
void vramalloc_free_text(char *text);

/**
 * Writes the statistics of this process as they are now to the file that
 * `pattern` names, as the option `stats` does ("%e" program, "%p" process,
 * "%h" host, "%r" rank, "%%" a percent sign; also "stderr" and "off"). If it
 * is null, they go to where that option says. The file appears under its name
 * when it is whole.
 *
 * May be called when `vramalloc_statistics` may.
 *
 * Errors: `VRAMALLOC_INVALID_VALUE` for a pattern that cannot be read,
 * `VRAMALLOC_IO`.
 *
 * The caller promises that `pattern`, if it is not null, ends in zero.
 */
vramalloc_result vramalloc_dump(const char *pattern);

/**
 * Asks the library for a value by name, runs an action, or sets an option.
 *
 * | name | without a value | with one |
 * |---|---|---|
 * | `version` | the library's version | |
 * | `library.path` | where the library was loaded from | |
 * | `preloaded` | 1 if it stands in front of CUDA's functions, else 0 | |
 * | `statistics` | the JSON of `vramalloc_statistics` | |
 * | `option.<key>` | the option's value in force | sets it |
 * | `device.count` | CUDA's devices; 0 before it is initialised | |
 * | `device.<n>.live` | bytes in blocks that are held | |
 * | `device.<n>.cached` | bytes that could be handed out again | |
 * | `device.<n>.limbo` | freed bytes that may be in use still | |
 * | `device.<n>.idle` | bytes that `trim` would give back, if out of use | |
 * | `device.<n>.reserved` | bytes that CUDA gave | |
 * | `device.<n>.past_pool` | bytes that CUDA gave past the pool | |
 * | `device.<n>.counted` | bytes that count towards the limit | |
 * | `device.<n>.limit` | the limit in bytes, or `none` | sets it for this device: a size, a share, or `none` |
 * | `device.<n>.live_peak` | the most that was live | `reset`: begins it anew; bytes: raises it to these. The answer is what it was. |
 * | `device.<n>.reserved_peak` | the most that was reserved | the same |
 * | `device.<n>.allocations` | blocks handed out since the start | |
 * | `device.<n>.frees` | blocks freed since then | |
 * | `device.<n>.requested` | bytes asked for since then | |
 * | `mark` | sets a mark; its number | |
 * | `mark.<m>.blocks` | blocks that are live and were not at the mark | |
 * | `mark.<m>.bytes` | their bytes | |
 * | `mark.<m>.report` | the same as JSON, with where they were asked for | |
 * | `mark.<m>.end` | forgets the mark | |
 * | `flush` | makes available what is out of use; does not wait | |
 * | `trim` | `vramalloc_empty_cache` at all places; the bytes given back | |
 * | `dump` | `vramalloc_dump` | with this pattern |
 *
 * Keys of options are those of docs/options.md, or the frameworks' names for
 * them. Before memory was first asked for, each that has an effect can be
 * set; afterwards `limit` and `device_limits` (idle memory beyond a lower one is
 * given back), `stats`, `fuse_parameter_groups_size`,
 * `fuse_parameter_memory_size` and `eager_delete_scope`.
 *
 * A peak that is begun anew starts with what there is; the statistics' own peaks do
 * not change. One that is measured inside another keeps the answer of `reset`, and
 * raises the peak to it in the end. Where several arenas of a device had memory, a
 * peak is the sum of theirs, which may have been at different times. Of marks the
 * newest 64 are known; a block at an address that was in use at the mark counts as
 * there already.
 *
 * The answer is a text (a number in decimal, or nothing). It is written to
 * `buffer` with a zero at its end, and its length with the zero to `*length`.
 * Each of the two may be null if it is not wanted.
 *
 * May be called before CUDA is initialised, by any thread, and during a
 * capture; not in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `name`,
 * `VRAMALLOC_UNKNOWN_NAME`, `VRAMALLOC_READ_ONLY`, `VRAMALLOC_INVALID_VALUE`,
 * `VRAMALLOC_IO`; `VRAMALLOC_TOO_SMALL` if the answer does not fit into
 * `capacity` bytes: what was asked for is done then, and the length written.
 *
 * The caller promises that texts end in zero, that `buffer` has room for
 * `capacity` bytes and that `length` may be written to, if they are not null.
 */
vramalloc_result vramalloc_ctl(const char *name,
                               const char *value,
                               char *buffer,
                               size_t capacity,
                               size_t *length);

/**
 * Says which block of a device's memory `address` lies in, and where it was asked
 * for.
 *
 * To `calls` it writes the addresses of the calls in machine code, the innermost
 * first, as `backtrace_symbols` and `dladdr` take them (null where the library is
 * no longer loaded); how many there are to `block->calls`. To `python` it writes a
 * text with a line for each place of Python, the innermost first, as
 * "train.py:41 forward"; its length to `block->python`. Each of the two may be null
 * if it is not wanted.
 *
 * Any address in a block is its own; of one that has an allocation of CUDA's for
 * itself, perhaps only the first.
 *
 * May be called by any thread, and during a capture; no CUDA function is called.
 * Not in a forked child and not from a signal handler.
 *
 * Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `block` or a `struct_size` that
 * is none; `VRAMALLOC_NOT_OURS` if no block that is held lies there;
 * `VRAMALLOC_TOO_SMALL` if `calls` has no room for `calls_capacity` addresses or
 * `python` none for `python_capacity` bytes: the block is written all the same, and
 * neither of the two.
 *
 * The caller promises that `block` has `block->struct_size` bytes, `calls` room for
 * `calls_capacity` addresses, and `python` for `python_capacity` bytes, if they are
 * not null.
 */
vramalloc_result vramalloc_whose(const void *address,
                                 struct vramalloc_block *block,
                                 void **calls,
                                 size_t calls_capacity,
                                 char *python,
                                 size_t python_capacity);

/**
 * Allocates memory for a tensor that is used on `stream` of the device with
 * this ordinal. Fits as the first function of
 * `torch.cuda.memory.CUDAPluggableAllocator`.
 *
 * PyTorch tells an allocator of `Tensor.record_stream` only if it was given a
 * function for that. Until `vramalloc_torch_hook` is asked for that function,
 * memory comes as from `vramalloc_malloc`, which is safe with any number of
 * streams; from then on as from `vramalloc_malloc_on_stream`, which is faster
 * and needs no preload. While the stream captures a graph, memory is kept for
 * the graph in both cases, as `vramalloc_malloc_on_stream` says.
 *
 * PyTorch does not check whether it got memory. So if there is none, this
 * function throws std::bad_alloc, which becomes an exception of Python, if the
 * C++ library is in the process; else it returns null. For 0 bytes it returns
 * null too.
 *
 * May be called when `vramalloc_malloc` may.
 *
 * The caller promises that the stream is alive.
 */
void *vramalloc_torch_malloc(ptrdiff_t size, int device, vramalloc_stream stream);

/**
 * Frees memory of `vramalloc_torch_malloc`. Fits as the second function of
 * `torch.cuda.memory.CUDAPluggableAllocator`. All but the address is ignored;
 * for null it does nothing.
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
 * A further function for PyTorch's allocator object, by its name. Returns the
 * address for the method in the second column, or null for any other name.
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
 * The caller promises that `name`, if it is not null, ends in zero.
 */
void *vramalloc_torch_hook(const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VRAMALLOC_H */
