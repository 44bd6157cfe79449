"""Pairs of an allocation and a free below frames of a library and of Python.

usage: deep.py LIBRARY NATIVE PYTHON ROUNDS PAIRS
"""

import ctypes
import json
import sys

library = ctypes.CDLL(sys.argv[1])
library.pair_below.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long)
library.pair_below.restype = ctypes.c_double
native, python, rounds, pairs = map(int, sys.argv[2:])


def below(frames):
    if frames > 1:
        return below(frames - 1)
    return library.pair_below(native, rounds, pairs)


# The place below is one more.
print(json.dumps({"frames": native + python, "ns": below(python - 1)}))
