"""Asks Paddle for tensors by steps, as tests/programs/steps.c asks CUDA:
+BYTES allocates, -N frees the N-th."""

import sys

import paddle


def main():
    paddle.device.set_device("gpu:0")
    tensors = []
    for step in sys.argv[1:]:
        if step.startswith("+"):
            tensors.append(paddle.empty([int(step) // 4], "float32"))
        else:
            tensors[-int(step)] = None


main()
