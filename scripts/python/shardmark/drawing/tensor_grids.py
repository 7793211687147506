"""Tensor parallelism in 1, 2, 2.5 and 3 dimensions over the number of ranks: bytes, memory and time."""
from collections import defaultdict

from .bars import UNIT_OF_BYTES, UNIT_OF_TIME
from .over_ranks import panels
from .run_json import Absent
from .sheet import Sheet, file_name

MODE, DEPTH, PRODUCT = "tensor-parallel-mode", "tensor-parallel-depth", "tensor-parallel-product"
LINES = ["1d", "2d", "2d cannon", "2.5d", "3d"]
QUANTITIES = ["bytes_sent", "memory", "seconds"]


def tensor_grids(run):
    groups = defaultdict(lambda: defaultdict(dict))
    for case in run.with_key("memory"):
        if MODE not in case.axes:
            continue
        rest = tuple(sorted((k, v) for k, v in case.axes.items() if k not in {"ranks", MODE, DEPTH, PRODUCT}))
        line = case.axes[MODE] + (" cannon" if case.axes.get(PRODUCT) == "cannon" else "")
        of_ranks = groups[case.unit, rest][line]
        if _is_cube(case) and (case.ranks not in of_ranks or _depth(case) > _depth(of_ranks[case.ranks])):
            of_ranks[case.ranks] = case
    drawn = [(unit, rest, lines) for (unit, rest), lines in sorted(groups.items())
             if len({ranks for of_ranks in lines.values() for ranks in of_ranks}) > 1]
    if not drawn:
        if run.only:
            raise Absent("no unit with a tensor-parallel-mode was measured at more than one number of ranks")
        return
    for unit, rest, lines in drawn:
        yield _sheet(unit, dict(rest), lines)


def _depth(case):
    return int(case.axes.get(DEPTH, 1))


def _is_cube(case):
    """A depth above q is data parallelism rather than 2.5d (Tesseract: 1 <= d <= q)."""
    return case.axes[MODE] != "2.5d" or _depth(case) ** 3 <= case.ranks


def _sheet(unit, rest, lines):
    values = {line: {ranks: (case.number("wire_bytes_measured") / ranks,
                             sum(row["measured"] for row in case.first("memory")), case.seconds())
                     for ranks, case in sorted(of_ranks.items())} for line, of_ranks in lines.items() if of_ranks}
    figure = panels(values, LINES, [("mean sent by a rank", UNIT_OF_BYTES), ("peak memory of a rank", UNIT_OF_BYTES),
                                    ("time", UNIT_OF_TIME)], "ranks")
    rows = []
    for line, of_ranks in values.items():
        rows += [[unit, line, ranks, _depth(lines[line][ranks]), quantity, value, lines[line][ranks].verdict]
                 for ranks, of in of_ranks.items() for quantity, value in zip(QUANTITIES, of)]
    sizes = ", ".join(f"{k} {v}" for k, v in sorted(rest.items()))
    return Sheet(file_name("tensor_grids", unit, *(v for _, v in sorted(rest.items()))),
                 f"Tensor parallelism in 1, 2, 2.5 and 3 dimensions: {unit.replace('_', '-')}",
                 f"Forward and backward with {sizes}. Bytes and memory equal their closed formulas where the oracles "
                 "pass. 2.5d has the largest depth that is at most the side of its layers.", figure,
                 ["unit", "mode", "ranks", "depth", "quantity", "value", "verdict"], rows)
