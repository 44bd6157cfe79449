"""Generated traces, in the form of tests/traces: of programs that train with sizes that
repeat, train with sizes that vary, answer requests with growing caches, and join tables.

The same number makes the same trace on every machine. A trace is a list of rounds, each
a list of (id, size) for an allocation and (id, None) for a free; sizes are in bytes.
"""

import random

KIB, MIB = 1 << 10, 1 << 20


class Making:
    """The rounds of a trace."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.rounds = []
        self.next = 0

    def begin(self):
        self.rounds.append([])

    def take(self, size):
        number, self.next = self.next, self.next + 1
        self.rounds[-1].append((number, max(1, int(size))))
        return number

    def free(self, number):
        self.rounds[-1].append((number, None))


def train(seed, varies):
    """Weights that stay, and in each step activations that go in the opposite order."""
    making = Making(seed)
    draw = making.random
    layers, width = draw.randrange(8, 25), draw.choice([1, 2, 4]) * MIB
    making.begin()
    for _ in range(layers):
        for part in (1, 1, 4, 4):
            making.take(width * part)
            making.take(draw.choice([3, 6, 12]) * KIB)
    for _ in range(draw.randrange(10, 17)):
        making.begin()
        scale = draw.uniform(0.6, 1.0) if varies else 1.0
        kept = []
        for layer in range(layers):
            for part in (1.0, 2.5, 0.5):
                temporary = making.take(width * part * scale * (1 + layer % 3))
                kept.append(making.take(width * part * scale))
                making.free(temporary)
            kept.append(making.take(draw.randrange(1, 64) * KIB))
        gradients = []
        for number in reversed(kept):
            making.free(number)
            if len(gradients) < layers and draw.random() < 0.4:
                gradients.append(making.take(width * 2))
        for number in gradients:
            making.free(number)
    return making.rounds


def serve(seed):
    """Requests whose caches grow by pages, and that end in any order."""
    making = Making(seed)
    draw = making.random
    page = draw.choice([64 * KIB, 256 * KIB, 2 * MIB])
    making.begin()
    for _ in range(16):
        making.take(draw.randrange(8, 65) * MIB)
    for _ in range(12):
        making.begin()
        open_ones = []
        for _ in range(draw.randrange(150, 250)):
            if open_ones and draw.random() < 0.08:
                for number in open_ones.pop(draw.randrange(len(open_ones))):
                    making.free(number)
            if len(open_ones) < 8:
                open_ones.append([])
            draw.choice(open_ones).append(making.take(page * draw.randrange(1, 5)))
            making.free(making.take(draw.randrange(1, 200) * 4 * KIB))
        for numbers in open_ones:
            for number in numbers:
                making.free(number)
    return making.rounds


def join(seed):
    """Tables of sizes that hardly ever repeat, of which some outlive their round."""
    making = Making(seed)
    draw = making.random
    making.begin()
    making.take(64 * MIB)
    tables, held = [], 0
    for _ in range(12):
        making.begin()
        for _ in range(draw.randrange(40, 80)):
            rows = 2 ** draw.uniform(8, 22)
            while held > 1000 * MIB:
                for number, size in tables.pop(draw.randrange(len(tables))):
                    making.free(number)
                    held -= size
            columns = [(making.take(rows * 8), int(rows * 8)) for _ in range(draw.randrange(2, 7))]
            making.free(making.take(rows * 16))
            if draw.random() < 0.6:
                tables.append(columns)
                held += sum(size for _, size in columns)
            else:
                for number, _ in columns:
                    making.free(number)
    return making.rounds


def all_of():
    """Twenty traces by their names."""
    made = {}
    for seed in range(1, 6):
        made[f"train.{seed}"] = train(seed, False)
        made[f"varlen.{seed}"] = train(seed, True)
        made[f"serve.{seed}"] = serve(seed)
        made[f"join.{seed}"] = join(seed)
    return made


def text(rounds):
    """A trace in the form of a file."""
    sizes, lines = {}, []
    for number, size in (event for part in rounds for event in part):
        if size is not None:
            sizes[number] = size
        lines.append(f"{'f' if size is None else 'a'},{number},{sizes[number]},0\n")
    return "".join(lines)
