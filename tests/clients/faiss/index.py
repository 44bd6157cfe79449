"""Puts vectors into flat indices on two devices with faiss, reads them back,
searches, and takes them out."""

import faiss
import numpy

WIDTH = 64


def main():
    generator = numpy.random.default_rng(1)
    for device in range(faiss.get_num_gpus()):
        resources = faiss.StandardGpuResources()
        resources.setTempMemory(16 << 20)
        config = faiss.GpuIndexFlatConfig()
        config.device = device
        index = faiss.GpuIndexFlatL2(resources, WIDTH, config)
        for turn in range(3):
            vectors = generator.random((100, WIDTH), dtype=numpy.float32)
            for more in (1, 1000, 20_000, 60_000):
                fresh = generator.random((more, WIDTH), dtype=numpy.float32)
                index.add(fresh)
                vectors = fresh if index.ntotal == more else numpy.concatenate((vectors, fresh))
                if not (index.reconstruct_n(0, index.ntotal) == vectors).all():
                    raise RuntimeError(f"{index.ntotal} vectors came back changed")
                index.search(vectors[:5], 4)
                print(f"device {device}, turn {turn}: {index.ntotal} vectors")
            index.reset()
            usage = resources.getMemoryInfo()
            print(f"device {device}, turn {turn}: {usage}")


main()
