"""What the library and the simulated CUDA take for granted about CUDA.

One line an assumption: which facts it is about, what they have to be, and what
rests on it. A fact is named as the programs `tests/programs/fact_*.c` name it.
"""

import dataclasses
import fnmatch

# CUDA's codes.
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT = 1, 2, 201
NOT_SUPPORTED = 801
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901

YES, NO = 1, 0


@dataclasses.dataclass(frozen=True)
class Assumption:
    facts: str
    # A value, or a function that says whether a value is right.
    expected: object
    # Without it the library is wrong; else only its model of CUDA is.
    vital: bool
    text: str
    # Rows of docs/compatibility.md.
    hazards: tuple = ()
    # Only where programs use CUDA in this way.
    kinds: tuple = ("dynamic", "static", "driver")

    def holds(self, value):
        return self.expected(value) if callable(self.expected) else value == self.expected

    def about(self, kind, name):
        return kind in self.kinds and fnmatch.fnmatchcase(name, self.facts)


def vital(facts, expected, text, **more):
    return Assumption(facts, expected, True, text, **more)


def model(facts, expected, text, **more):
    return Assumption(facts, expected, False, text, **more)


RUNTIME = ("dynamic", "static")
DRIVER = ("driver",)

# The first one that is about a fact counts.
ASSUMPTIONS = [
    # Chunks go back by the driver's free, under work that may still use them.
    *[
        vital(
            f"free_waits.own.*.{size}",
            YES,
            "the driver's free of a chunk waits for the kernels that use it, on any stream",
            hazards=(1,),
        )
        for size in (2 << 20, 64 << 20)
    ],
    model(
        "free_waits.*",
        YES,
        "a free waits for all kernels of the context, whatever they use",
        hazards=(1,),
    ),
    vital(
        "free_host_waits.*",
        YES,
        "the free of page-locked memory waits for all kernels of the context",
        hazards=(34,),
    ),
    model("malloc_waits.*", NO, "an allocation does not wait for kernels"),
    model("malloc_host_waits.*", NO, "an allocation of page-locked memory does not wait"),
    vital(
        "free_async_of_plain.*",
        0,
        "memory of the plain allocation may be freed in the order of a stream",
        hazards=(13,),
    ),
    model("free_async_waits.*", NO, "and that free does not wait", hazards=(13,)),
    # Fences.
    model("mark.exists", YES, "the driver has cuCtxRecordEvent (12.5 and later)"),
    vital("mark.code.*", 0, "cuCtxRecordEvent can be called whatever runs", hazards=(1,)),
    vital(
        "mark.covers.*",
        YES,
        "its event is not reached while any work of the context runs",
        hazards=(1,),
    ),
    vital("mark.reached_after.*", YES, "its event is reached when the work is done", hazards=(1,)),
    vital("mark.delays_later_work", NO, "work asked for after it does not wait for it"),
    model("mark.delay", lambda ns: ns < 1_000_000, "it is reached within 1 ms of the work"),
    model("mark.idle_ns", lambda ns: ns < 1_000_000, "on an idle device it is reached within 1 ms"),
    # Captures.
    *[
        vital(
            f"capture.*.{who}.exchanged_{call}{end}",
            0,
            "a thread in the relaxed mode may allocate and free while any stream captures",
            hazards=(7,),
        )
        for who in ("same_thread", "other_thread")
        for call in ("malloc", "free_small", "free_large", "malloc_host", "free_host")
        for end in ("", ".end")
    ],
    vital(
        "capture_free_waits.*",
        YES,
        "a free during a capture waits for running kernels too",
        hazards=(7,),
    ),
    vital(
        "capture.*.is_capturing*",
        0,
        "a stream may be asked whether it captures while it does",
        hazards=(7,),
    ),
    *[
        model(f"capture.*.stream_{what}*", 0, "and for its context and priority")
        for what in ("context", "priority")
    ],
    *[
        model(f"capture.*.stream_{what}{end}", code, "but not for its number, device and flags")
        for what in ("id", "device", "flags")
        for end, code in (("", CAPTURE_UNSUPPORTED), (".end", CAPTURE_INVALIDATED))
    ],
    model(
        "capture.relaxed.*_thread.malloc*",
        0,
        "a relaxed capture forbids no allocation",
        hazards=(7,),
    ),
    model("capture.relaxed.*_thread.free_*", 0, "a relaxed capture forbids no free", hazards=(7,)),
    model(
        "capture.global.*_thread.malloc",
        CAPTURE_UNSUPPORTED,
        "a global capture forbids allocations to every thread",
        hazards=(7,),
    ),
    model(
        "capture.global.*_thread.malloc.end",
        CAPTURE_INVALIDATED,
        "and they invalidate it",
        hazards=(7,),
    ),
    model(
        "capture.*.ctx_record_event",
        CAPTURE_UNSUPPORTED,
        "cuCtxRecordEvent fails while a stream of the context captures",
        hazards=(8,),
    ),
    model(
        "capture.*.ctx_record_event.end",
        CAPTURE_INVALIDATED,
        "and invalidates the capture",
        hazards=(8,),
    ),
    # Amounts and addresses.
    *[
        vital(
            f"alignment.{size}",
            lambda power: power >= 1 << 16,
            "memory of a chunk's size is aligned to 64 KiB or better",
        )
        for size in (2 << 20, 3 << 20, 20 << 20)
    ],
    vital(
        "alignment.*",
        lambda power: power >= 256,
        "device memory is aligned to 256 bytes or better",
    ),
    model("alignment_host.*", lambda power: power >= 512, "page-locked memory, to 512 bytes"),
    model("amount.step", 2 << 20, "what is free falls by pages of 2 MiB"),
    model(f"amount.each.{2 << 20}", 2 << 20, "2 MiB cost 2 MiB"),
    model(f"amount.each.{20 << 20}", 20 << 20, "20 MiB cost 20 MiB"),
    model("amount.back.*", lambda left: left >= 0, "what was freed is free again"),
    # Memory in units.
    vital(
        "mapped_waits.free",
        YES,
        "the driver's free of a page waits for kernels on mapped memory",
        hazards=(33, 39),
    ),
    model("mapped_waits.*", NO, "no call for mapped memory waits for kernels"),
    *[
        vital(
            f"mapped_capture.*.{call}{end}",
            0,
            "a thread in the relaxed mode may create and map memory while any stream captures",
            hazards=(7,),
        )
        for call in ("create", "map", "access", "release")
        for end in ("", ".end")
    ],
    model(
        "mapped_capture.*",
        0,
        "and every thread in whatever mode, and unmap it, on which nothing relies",
        hazards=(7,),
    ),
    vital("mapped.access_to_two", 0, "one call gives access to memory of several units"),
    vital("mapped.create_takes", YES, "memory is taken when it is created"),
    vital("mapped.release_keeps", YES, "and stays while it is mapped"),
    vital("mapped.unmap_gives", YES, "and goes when it is released and unmapped"),
    model("mapped.unmap_two", 0, "one call unmaps several units"),
    model("mapped.with_offset", NOT_SUPPORTED, "no part of created memory is mapped by itself"),
    model("mapped.range.is_unit", YES, "an address range of mapped memory is a unit"),
    model("mapped.handle_refused", YES, "mapped memory has no handle of the old kind"),
    vital("mapped.unmap_half_refused", YES, "a part of a unit is not unmapped"),
    # Edges.
    model(
        "malloc_of_zero", 0, "the runtime gives nothing for nothing", hazards=(14,), kinds=RUNTIME
    ),
    model("malloc_of_zero.gives_null", YES, "and a null pointer", hazards=(14,), kinds=RUNTIME),
    model(
        "malloc_of_zero",
        INVALID_VALUE,
        "the driver refuses zero bytes",
        hazards=(14,),
        kinds=DRIVER,
    ),
    model("free_of_null", 0, "NULL may be freed", hazards=(14,)),
    model("free_inside", INVALID_VALUE, "an address inside a block is refused", hazards=(14,)),
    model("free_twice", INVALID_VALUE, "a second free is refused", hazards=(14,)),
    model("malloc_of_too_much", OUT_OF_MEMORY, "too much is out of memory"),
    model("driver_malloc_of_too_much", OUT_OF_MEMORY, "to the driver as well"),
    vital(
        "last_error_after_it",
        0,
        "a failure of the driver's own function does not show in the runtime's last error",
        hazards=(15,),
    ),
    model(
        "without_context.malloc",
        INVALID_CONTEXT,
        "a thread without a context gets no memory",
        hazards=(31,),
    ),
    model("without_context.free", 0, "but may free what there is", hazards=(31,)),
    # Handles.
    model("handle.inner.code.*", 0, "an address inside a block has a handle", hazards=(2,)),
    vital(
        "handle.inner.same.*", YES, "which is that of the beginning, byte for byte", hazards=(2,)
    ),
    vital("handle.opens.*", lambda word: word >= 1000, "another process opens it", hazards=(2,)),
    vital(
        "handle.of_nothing.opens",
        lambda word: word < 0,
        "bytes that nobody made are refused",
        hazards=(2,),
    ),
    # Pools of CUDA's.
    vital(
        "pool.beside.*",
        YES,
        "a stream with nothing to do takes from a pool and gives back at once, whatever others do",
        hazards=(41,),
    ),
    # Look-ups.
    model(
        "deepbind.served",
        NO,
        "a runtime opened with RTLD_DEEPBIND looks past the library",
        hazards=(21,),
    ),
]


def about(kind, name):
    """The assumption that this fact bears on, if any does."""
    return next((each for each in ASSUMPTIONS if each.about(kind, name)), None)
