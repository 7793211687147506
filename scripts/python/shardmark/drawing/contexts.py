"""Attention whose sequence is split over ranks: tokens per second, memory, and the sequence that fits a memory."""
from collections import defaultdict

from .bars import UNIT_OF_BYTES
from .over_ranks import panels
from .run_json import Absent
from .sheet import Sheet, file_name

UNITS = ("ring_attention", "ulysses_attention", "fpdt_attention")
TYPE, PLACEMENT, LENGTH = "cp-comm-type", "placement", "seq-length"
CHUNK, OFFLOADING = "ds-sequence-parallel-fpdt-chunk-size", "ds-sequence-parallel-fpdt-offloading"
OF_ALGORITHM = {TYPE, PLACEMENT, CHUNK, OFFLOADING, "cp-a2a-size"}
LINES = ["ring", "all-gather", "Ulysses and ring", "Ulysses", "FPDT", "FPDT, chunks on the host"]
RINGS = {"p2p": "ring", "all_gather": "all-gather", "a2a+p2p": "Ulysses and ring"}
UNIT_OF_TOKENS = [(1e6, "million tokens"), (1e3, "thousand tokens"), (1, "tokens")]
UNIT_OF_RATE = [(scale, f"{word}/s") for scale, word in UNIT_OF_TOKENS]
BUDGET = 2**30
QUANTITIES = ["tokens_per_second", "memory", "longest_sequence"]


def contexts(run):
    groups = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for case in run.with_key("memory"):
        if case.unit in UNITS and case.number("tokens_per_second"):
            rest = tuple(sorted((k, v) for k, v in case.axes.items() if k not in OF_ALGORITHM | {"ranks", LENGTH}))
            groups[rest][_line(case)][case.ranks].setdefault(int(case.axes[LENGTH]), case)
    drawn = [(rest, lines) for rest, lines in sorted(groups.items())
             if len({ranks for of_ranks in lines.values() for ranks, of in of_ranks.items() if len(of) > 1}) > 1]
    if not drawn and run.only:
        raise Absent("no attention over ranks was measured with two sequence lengths at more than one number of ranks")
    for rest, lines in drawn:
        yield _sheet(dict(rest), lines)


def _line(case):
    if case.unit == "fpdt_attention":
        return LINES[5] if case.axes[OFFLOADING] in ("on", "true", "1") else LINES[4]
    return RINGS[case.axes[TYPE]] if case.unit == "ring_attention" else "Ulysses"


def _memory(case):
    """Returns the peak on the device: the first row of each category; FPDT's host memory has no row."""
    return sum(row["measured"] for row in case.first("memory"))


def _values(of_lengths):
    """Returns the three quantities at the longest sequence. Memory is linear in the length."""
    (short, low), (long, high) = sorted(of_lengths.items())[-2:]
    slope = (_memory(high) - _memory(low)) / (long - short)
    longest = long + (BUDGET - _memory(high)) / slope if slope > 0 else 0
    return high.number("tokens_per_second"), _memory(high), longest


def _sheet(rest, lines):
    values = {line: {ranks: _values(of) for ranks, of in sorted(lines[line].items()) if len(of) > 1}
              for line in LINES if line in lines}
    lengths = {max(of) for of_ranks in lines.values() for of in of_ranks.values() if len(of) > 1}
    figure = panels(values, LINES, [("attention", UNIT_OF_RATE), ("peak memory of a rank", UNIT_OF_BYTES),
                                    ("sequence in 1 GiB", UNIT_OF_TOKENS)], "ranks (CP)")
    rows = [[line, ranks, max(lines[line][ranks]), quantity, value, lines[line][ranks][max(lines[line][ranks])].verdict]
            for line, of_ranks in values.items() for ranks, of in of_ranks.items()
            for quantity, value in zip(QUANTITIES, of)]
    sizes = ", ".join(f"{k} {v}" for k, v in sorted(rest.items()))
    return Sheet(file_name("contexts", *(v for _, v in sorted(rest.items()))),
                 "Attention whose sequence is split over ranks",
                 f"Forward and backward of {' and '.join(map(str, sorted(lengths)))} tokens, {sizes}. Memory of the device: "
                 "queries, keys, values, outputs, their gradients, and what the algorithm holds. The sequence that fits 1 GiB "
                 "follows from two lengths, because memory is linear in the length.", figure,
                 ["algorithm", "ranks", "seq_length", "quantity", "value", "verdict"], rows)
