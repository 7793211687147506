"""Tensor parallelism in 1, 2, 2.5 and 3 dimensions over the number of ranks: bytes, memory and time."""
from collections import defaultdict

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .bars import UNIT_OF_BYTES, UNIT_OF_TIME, unit_for
from .run_json import Absent
from .sheet import WIDTH, Sheet, file_name, legend_above, line_style, plain_log

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
    figure = Figure(figsize=(2 * WIDTH, 2.4))
    axes = figure.subplots(1, 3)
    rows, handles = [], []
    values = {line: {ranks: (case.number("wire_bytes_measured") / ranks,
                             sum(row["measured"] for row in case.first("memory")), case.seconds())
                     for ranks, case in sorted(of_ranks.items())} for line, of_ranks in lines.items() if of_ranks}
    ticks = sorted({ranks for of_ranks in values.values() for ranks in of_ranks})
    for index, (axis, label, units) in enumerate(zip(
            axes, ("mean sent by a rank", "peak memory of a rank", "time"), (UNIT_OF_BYTES, UNIT_OF_BYTES, UNIT_OF_TIME))):
        scale, word = unit_for(max(of[index] for of_ranks in values.values() for of in of_ranks.values()), units)
        for line in (name for name in LINES if name in values):
            points = [(ranks, of[index] / scale) for ranks, of in values[line].items() if of[index] > 0]
            if points:
                handles += axis.plot(*zip(*points), label=line, **line_style(LINES.index(line)))[:index == 0]
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(ticks))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.margins(x=0.1, y=0.1)
        plain_log(axis, 10)
        axis.set_xlabel("ranks")
        axis.set_ylabel(f"{label} [{word}]")
    for line, of_ranks in values.items():
        rows += [[unit, line, ranks, _depth(lines[line][ranks]), quantity, value, lines[line][ranks].verdict]
                 for ranks, of in of_ranks.items() for quantity, value in zip(QUANTITIES, of)]
    legend_above(axes[0], handles=handles, labels=[handle.get_label() for handle in handles])
    sizes = ", ".join(f"{k} {v}" for k, v in sorted(rest.items()))
    return Sheet(file_name("tensor_grids", unit, *(v for _, v in sorted(rest.items()))),
                 f"Tensor parallelism in 1, 2, 2.5 and 3 dimensions: {unit.replace('_', '-')}",
                 f"Forward and backward with {sizes}. Bytes and memory equal their closed formulas where the oracles "
                 "pass. 2.5d has the largest depth that is at most the side of its layers.", figure,
                 ["unit", "mode", "ranks", "depth", "quantity", "value", "verdict"], rows)
