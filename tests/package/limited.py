"""Two tests: one keeps to its limit, and one does not."""

import pytest
from cuda import MIB, free, malloc


@pytest.mark.limit_gpu_memory("64M")
def test_keeps_to_it():
    free(malloc(32 * MIB))


@pytest.mark.limit_gpu_memory("16M")
def test_does_not():
    free(malloc(128 * MIB))
