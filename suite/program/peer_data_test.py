#!/usr/bin/env python3
"""The order of samples equals that of Megatron-Core, run from the package megatron-core, or else of numpy.

Megatron-Core's compiled helpers and its two functions on numpy arrays run without PyTorch. Without the package, plain
loops replace the helpers. Without numpy, the test is skipped."""

import ast
import importlib.util
import json
import math
import os
import struct
import sys
import unittest

from process import TemporaryFolder, shardmark

try:
    import numpy
except ImportError:
    print("peer_data_test: numpy is missing")
    sys.exit(77)


def megatron():
    """Returns Megatron-Core's helpers and its functions by name, or None."""
    try:
        spec = importlib.util.find_spec("megatron.core")
    except ImportError:
        spec = None
    if spec is None:
        return None
    folder = os.path.join(spec.submodule_search_locations[0], "datasets")
    with open(os.path.join(folder, "gpt_dataset.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    wanted = ("_build_document_index", "_build_shuffle_index")
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    names = {"numpy": numpy}
    exec(compile(tree, "gpt_dataset.py", "exec"), names)  # the package's own code
    library, = (name for name in os.listdir(folder) if name.startswith("helpers_cpp."))
    spec = importlib.util.spec_from_file_location("helpers_cpp", os.path.join(folder, library))
    helpers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)
    return helpers, names["_build_document_index"], names["_build_shuffle_index"]


class PlainHelpers:
    """Samples by the flat list of all tokens, and the blend by its definition."""

    @staticmethod
    def build_sample_idx_int32(sizes, documents, length, epochs, tokens, *_):
        flat = [(place, offset) for place, document in enumerate(documents) for offset in range(sizes[document])]
        return numpy.array([flat[i * length] for i in range((epochs * tokens - 1) // length + 1)])

    @staticmethod
    def build_blending_indices(sets, positions, weights, number, size, _):
        taken = [0] * number
        for i in range(size):
            missing = [weights[k] * max(i, 1) - taken[k] for k in range(number)]
            chosen = missing.index(max(missing))
            sets[i], positions[i] = chosen, taken[chosen]
            taken[chosen] += 1


def plain_document_index(documents, epochs, state, separate):
    if separate and epochs > 1:
        return numpy.concatenate([plain_document_index(documents, count, state, False) for count in (epochs - 1, 1)])
    index = numpy.tile(documents, epochs).astype(numpy.int32)
    state.shuffle(index)
    return index


def plain_shuffle_index(first, size, state):
    index = numpy.arange(size, dtype=numpy.uint32)
    state.shuffle(index[:first])
    if first < size:
        state.shuffle(index[first:])
    return index


PEER = megatron()
HELPERS, DOCUMENT_INDEX, SHUFFLE_INDEX = PEER or (PlainHelpers, plain_document_index, plain_shuffle_index)


def indices(sizes, documents, length, samples, seed):
    """Returns the three indices, by the steps of GPTDataset."""
    tokens = int(sizes[documents].sum())
    epochs = 1
    while samples and epochs * tokens < samples * length + 1:
        epochs += 1
    before = ((epochs - 1) * tokens - 1) // length
    separate = epochs > 1 and samples - before < int(0.80 * ((tokens - 1) // length))
    state = numpy.random.RandomState(seed)
    order = DOCUMENT_INDEX(documents, epochs, state, separate)
    starts = HELPERS.build_sample_idx_int32(sizes, order, length, epochs, tokens, True, 1)
    size = len(starts) - 1
    return order, starts, SHUFFLE_INDEX(before if separate else size, size, state)


def write_index(prefix, sizes):
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, len(sizes), len(sizes) + 1))
        file.write(sizes.astype("<i4").tobytes())
        file.write((numpy.cumsum(sizes) - sizes).astype("<i8").tobytes())
        file.write(numpy.arange(len(sizes) + 1).astype("<i8").tobytes())
    with open(prefix + ".bin", "wb") as file:
        file.write(bytes(int(sizes.sum())))


class Order(TemporaryFolder):
    def ours(self, *words):
        done = shardmark("data", "--order", self.path("order.json"), *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("order.json"), encoding="utf-8") as file:
            return json.load(file)

    def compare(self, mine, want, sizes):
        order, starts, shuffled = want
        self.assertEqual(mine["document_index"], order.tolist())
        self.assertEqual(mine["shuffle_index"], shuffled.tolist())
        # Both ends of a document are one place in the list of tokens.
        begins = numpy.concatenate([[0], numpy.cumsum(sizes[order])])
        flat = [int(begins[place] + offset) for place, offset in mine["sample_index"]]
        self.assertEqual(flat, [int(begins[place] + offset) for place, offset in starts])
        if PEER:
            self.assertEqual(mine["sample_index"], starts.tolist())

    def test_one_file_in_many_lengths(self):
        random = numpy.random.RandomState(5)
        for seed, number, length, samples in ((1234, 40, 7, 0), (1, 40, 16, 90), (2, 11, 5, 300), (3, 200, 64, 33), (4, 30, 1, 401)):
            with self.subTest(seed=seed):
                sizes = random.randint(1, 40, number).astype(numpy.int32)
                write_index(self.path("a"), sizes)
                mine, = self.ours("--data-path", self.path("a"), "--seq-length", str(length), "--samples", str(samples),
                                  "--seed", str(seed))["sets"]
                self.compare(mine, indices(sizes, numpy.arange(number, dtype=numpy.int32), length, samples, seed), sizes)

    def test_a_blend_with_splits(self):
        random = numpy.random.RandomState(6)
        all_sizes = [random.randint(1, 50, number).astype(numpy.int32) for number in (30, 77)]
        for name, sizes in zip("ab", all_sizes):
            write_index(self.path(name), sizes)
        for part, low, high in (("training", 0, 0.9), ("validation", 0.9, 1.0)):
            samples, weights = 150, (0.3, 0.7)
            mine = self.ours("--data-path", "3", self.path("a"), "7", self.path("b"), "--split", "90,10", "--part", part,
                             "--seq-length", "12", "--samples", str(samples), "--seed", "9")
            for got, sizes, weight in zip(mine["sets"], all_sizes, weights):
                documents = numpy.arange(round(low * len(sizes)), round(high * len(sizes)), dtype=numpy.int32)
                needed = math.ceil(math.ceil(samples * weight) * 1.005)
                self.compare(got, indices(sizes, documents, 12, needed, 9), sizes)
            sets, positions = numpy.zeros(samples, numpy.int16), numpy.zeros(samples, numpy.int64)
            HELPERS.build_blending_indices(sets, positions, list(weights), 2, samples, False)
            self.assertEqual(mine["positions"], [list(pair) for pair in zip(sets.tolist(), positions.tolist())])


if __name__ == "__main__":
    print("peer: megatron-core" if PEER else "peer: numpy; megatron-core is not installed")
    unittest.main()
