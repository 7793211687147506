"""Memory bandwidth and matrix rate: the rates of units next to the measured limits of this machine."""
from collections import defaultdict
from itertools import zip_longest

from .bars import height_of, labels_of, pages
from .run_json import Absent
from .sheet import LIMIT, Sheet, byte_axis, decimal_text, file_name, fill_style, label_bars, legend_above, line_style, new_figure


def memory_bandwidth(run):
    """Copy bandwidth by working set and ranks; units that only move memory as points."""
    lines = defaultdict(list)
    for name, axes, value in run.rates:
        if name == "copy_GBps" and {"ranks", "bytes"} <= set(axes):
            lines[int(axes["ranks"])].append((int(axes["bytes"]), value))
    points = defaultdict(list)
    for case in run.with_key("algbw_GBps"):
        if case.number("bytes") and case.number("busbw_GBps") is None and case.number("flops") is None:
            points[(case.unit, case.ranks)].append(case)
    if not lines and not points:
        raise Absent("the run carries no copy bandwidth")
    figure, axis = new_figure(1.9)
    rows = []
    for index, (ranks, line) in enumerate(sorted(lines.items())):
        line.sort()
        axis.plot(*zip(*line), label=f"limit, {ranks} rank{'s' * (ranks > 1)}",
                  **{**line_style(index), "marker": None})
        rows += [["limit", ranks, size, value, "", ""] for size, value in line]
    for index, ((unit, ranks), members) in enumerate(sorted(points.items())):
        x = [c.number("bytes") for c in members]
        y = [c.number("algbw_GBps") for c in members]
        axis.plot(x, y, label=f"{unit.replace('_', '-')}, {ranks} rank{'s' * (ranks > 1)}",
                  **{**line_style(index), "linestyle": "none"})
        rows += [[unit, ranks, round(b), v, c.number("limit_fraction") or "", c.verdict]
                 for b, v, c in zip(x, y, members)]
    byte_axis(axis, [r[2] for r in rows])
    axis.set_ylim(0)
    axis.set_xlabel("working set")
    axis.set_ylabel("memory bandwidth\nof a rank [GB/s]")
    legend_above(axis)
    yield Sheet("memory_bandwidth", "Memory bandwidth by working set",
                "Bytes read plus written per second and rank, with this number of ranks at the same time: the limit with "
                "which cases are compared (lines), and the units that only move memory (points).", figure,
                ["series", "ranks", "bytes", "GBps", "limit_fraction", "verdict"], rows)


def matrix_rate(run):
    """GFLOP/s of the units that only multiply matrices, each with its limit; otherwise only the limits."""
    limits = sorted((axes.get("dtype", ""), int(axes.get("ranks", 1)), value)
                    for name, axes, value in run.rates if name == "gemm_GFLOPs")
    cases = [c for c in run.with_key("flops") if "gemm" in c.unit or "matmul" in c.unit or "matrix" in c.unit]
    if not limits and not cases:
        raise Absent("the run carries no matrix rate")
    if not cases:
        yield _measured_rates(limits)
    for unit, part, members in pages(run, cases, "matrix rate", "matrix_rate"):
        labels = labels_of(members)
        rates = [c.number("flops") / c.seconds() * 1e-9 for c in members]
        ceilings = [_ceiling(c, rate, limits) for c, rate in zip(members, rates)]
        figure, axis = _bars(labels, rates, max([*rates, *filter(None, ceilings)]))
        places = [(v, i) for i, v in enumerate(ceilings) if v]
        if places:
            axis.plot(*zip(*places), linestyle="none", marker="|", markersize=11, markeredgewidth=1.4,
                      color=LIMIT["color"], label="limit")
            legend_above(axis)
        _write_values(axis, rates, [f"{rate / ceiling:.0%}" if ceiling else decimal_text(rate)
                                    for rate, ceiling in zip(rates, ceilings)], ceilings)
        title = unit.replace("_", "-")
        yield Sheet(file_name("matrix_rate", unit, part), f"Matrix rate: {title}",
                    "The rate of the unit. The tick is the matrix rate measured in this run, and the percentage is the unit's "
                    "share of it.", figure,
                    ["unit", "case", "GFLOPs", "limit_GFLOPs", "verdict"],
                    [[unit, " ".join(label.split()), rate, ceiling or "", c.verdict]
                     for label, rate, ceiling, c in zip(labels, rates, ceilings, members)])


def _ceiling(case, rate, limits):
    for dtype, ranks, value in limits:
        if dtype == case.axes.get("dtype") and ranks == case.ranks:
            return value
    fraction = case.number("limit_fraction")
    return rate / fraction if fraction else None


def _bars(labels, values, longest):
    figure, axis = new_figure(height_of(labels, 0.2))
    axis.barh(range(len(values)), values, height=0.66, **fill_style(0))
    label_bars(axis, labels)
    axis.set_xlim(0, longest * 1.05)
    axis.set_xlabel("matrix rate of a rank [GFLOP/s]")
    return figure, axis


def _write_values(axis, values, texts, ticks=()):
    """Values inside the bars, or next to bars that are too short and to a tick there."""
    longest = axis.get_xlim()[1]
    for place, (value, text, tick) in enumerate(zip_longest(values, texts, ticks)):
        inside = value > 0.2 * longest
        covered = tick is not None and value <= tick < value + 0.1 * longest
        axis.annotate(text, (0 if inside else tick if covered else value, place), xytext=(3, 0), textcoords="offset points",
                      va="center", fontsize=6, color="white" if inside else "black")


def _measured_rates(limits):
    labels = [f"{dtype}, {ranks} rank{'s' * (ranks > 1)}" for dtype, ranks, _ in limits]
    values = [value for _, _, value in limits]
    figure, axis = _bars(labels, values, max(values))
    _write_values(axis, values, [decimal_text(value) for value in values])
    return Sheet("matrix_rate", "Matrix rate of this machine",
                 "Rate of a large matrix multiplication per rank, with this number of ranks at the same time: the limit with "
                 "which cases are compared.", figure, ["dtype", "ranks", "GFLOPs"], [list(row) for row in limits])
