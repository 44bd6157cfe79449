"""Starts a process under the library, from one that is not."""

import multiprocessing

import vramalloc
from cuda import MIB, free, malloc


def child(queue):
    free(malloc(MIB))
    queue.put((vramalloc.active(), vramalloc.stats()["totals"]["allocations"]))


if __name__ == "__main__":
    assert not vramalloc.active()
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    with vramalloc.configure_subprocess(stats="off"):
        process = spawn.Process(target=child, args=(queue,))
        process.start()
    assert queue.get(timeout=60) == (True, 1)
    process.join()
    assert process.exitcode == 0
    print("all is well")
