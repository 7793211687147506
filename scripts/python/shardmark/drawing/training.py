"""The loss of each training step, and throughput over ranks."""
from collections import defaultdict

from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .bars import folded, height_of, labels_of, pages, varying_axes, word_of
from .run_json import Absent
from .sheet import LIMIT, Sheet, file_name, fill_style, label_bars, legend_above, line_style, new_figure, plain_log

# Degrees describe the distribution of a step; the other axes describe its computation.
DEGREES = {"ranks", "TP", "PP", "DP", "CP", "EP", "ZeRO", "grid", "zero_stage", "schedule", "transport", "algorithm",
           "micro-batch", "sequence-parallel", "sequence_parallel", "recompute", "recompute-granularity"}
MOST_LINES = 8


def loss(run):
    cases = [case for case in run.with_key("losses") if len(case.first("losses")) > 1]
    if not cases:
        raise Absent("no case carries losses of several steps")
    units = defaultdict(list)
    for case in cases:
        units[case.unit].append(case)
    for unit, members in sorted(units.items()):
        # Bitwise equal cases share a line.
        curves = defaultdict(list)
        for case in members:
            curves[tuple(case.first("losses"))].append(case)
        figure, axis = new_figure(1.9)
        shown = dict(list(curves.items())[:MOST_LINES])
        for index, (values, name) in enumerate(zip(shown, _names(shown.values(), members))):
            # Marks at different steps, so that overlapping lines are visible.
            axis.plot(range(1, len(values) + 1), values, label=name,
                      markevery=(index % 5, max(1, min(5, len(values) // 4))), **line_style(index))
        axis.set_xlabel("step")
        axis.set_ylabel("loss [nats per token]")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        more = len(curves) - MOST_LINES
        title = unit.replace("_", "-") + (f", {more} more lines in the table" if more > 0 else "")
        legend_above(axis, title=title)
        yield Sheet(file_name("loss", unit), f"Loss of each step: {unit.replace('_', '-')}",
                    "Cases with bitwise equal losses share a line.", figure, ["unit", "case", "step", "loss"],
                    [[unit, " ".join(label.split()), step, value] for case, label in zip(members, labels_of(members))
                     for step, value in enumerate(case.first("losses"), 1)])


def _names(curves, members):
    """Yields a name for each line: the axes that its cases share and that not all lines share."""
    words = [[word_of(n, same[0].axes[n]) for n in varying_axes(members)
              if n != "ranks" and n in same[0].axes and len({c.axes.get(n) for c in same}) == 1] for same in curves]
    common = set.intersection(*map(set, words)) if len(words) > 1 else set()
    for same, of_line in zip(curves, words):
        text = folded([word for word in of_line if word and word not in common], width=44)
        yield (text or same[0].unit.replace("_", "-")) + (f" ({len(same)} cases)" if len(same) > 1 else "")


def mfu(run):
    """Model FLOPs utilization of each training step: of the peak, and of the best sustained matrix product."""
    cases = [case for case in run.cases if case.timed() and (case.number("mfu") or case.number("mfu_of_gemm"))]
    if not cases:
        raise Absent("no case carries model FLOPs utilization")
    for unit, part, members in pages(run, cases, "model FLOPs utilization", "mfu"):
        labels = labels_of(members)
        on_gpus = any(case.number("mfu_of_gemm") for case in members)
        figure, axis = new_figure(height_of(labels, 0.2))
        axis.barh(range(len(members)), [100 * (case.number("mfu") or 0) for case in members], height=0.66,
                  label="of the vendor's peak" if on_gpus else "of the measured matrix rate", **fill_style(0))
        ticks = [(100 * case.number("mfu_of_gemm"), i) for i, case in enumerate(members) if case.number("mfu_of_gemm")]
        if ticks:
            axis.plot(*zip(*ticks), linestyle="none", marker="|", markersize=11, markeredgewidth=1.4,
                      color=LIMIT["color"], label="of the best matrix product")
        label_bars(axis, labels)
        axis.set_xlim(0)
        axis.set_xlabel("model FLOPs utilization [%]")
        legend_above(axis)
        title = unit.replace("_", "-")
        yield Sheet(file_name("mfu", unit, part), f"Model FLOPs utilization: {title}",
                    "FLOPs of the model, without recomputation, over the time. On GPUs the bar is relative to the dense peak "
                    "that the vendor publishes, the tick to the best sustained matrix product of the GPU. On a host the bar "
                    "is relative to the measured matrix rate.", figure,
                    ["unit", "case", "mfu", "mfu_of_gemm", "peak_TFLOPs", "verdict"],
                    [[unit, " ".join(label.split()), *(case.number(key) or "" for key in ("mfu", "mfu_of_gemm", "peak_TFLOPs")),
                      case.verdict] for label, case in zip(labels, members)])


def scaling(run):
    """Tokens per second over ranks: the same step on more ranks (strong scaling), and a step that grows with them (weak)."""
    strong, weak = defaultdict(lambda: defaultdict(list)), defaultdict(lambda: defaultdict(list))
    for case in run.with_key("tokens_per_second"):
        rest = {k: v for k, v in case.axes.items() if k not in DEGREES}
        strong[case.unit][tuple(rest.items())].append(case)
        batch = int(rest.pop("global batch", 0))
        if batch % case.ranks == 0 and batch > 0:
            rest["sequences per rank"] = batch // case.ranks
            weak[case.unit][tuple(rest.items())].append(case)
    none = True
    for kind, units, work in (("strong", strong, "The same step on more ranks"),
                              ("weak", weak, "A batch that grows with the ranks")):
        for unit, series in sorted(units.items()):
            series = {rest: best for rest, members in series.items() if len(best := _fastest(members)) > 1}
            if series:
                none = False
                yield _scaling_sheet(kind, unit, series, work)
    if none:
        raise Absent("no unit carries tokens per second at more than one number of ranks")


def _fastest(members):
    """Returns {ranks: (tokens per second, low, high)} of the fastest case."""
    best = {}
    for case in members:
        rate = case.number("tokens_per_second")
        low, high = case.interval()
        if rate > best.get(case.ranks, (0,))[0]:
            best[case.ranks] = (rate, rate * case.seconds() / high, rate * case.seconds() / low)
    return dict(sorted(best.items()))


def _around(values, lows, highs):
    """Returns the distances of the interval ends from the values, for error bars."""
    return [[max(0.0, v - low) for v, low in zip(values, lows)], [max(0.0, high - v) for v, high in zip(values, highs)]]


def _scaling_sheet(kind, unit, series, work):
    figure, (axis, below) = new_figure(2.9, rows=2, sharex=True, height_ratios=[3, 2])
    rows = []
    same = set.intersection(*(set(rest) for rest in series))
    for index, (rest, best) in enumerate(list(series.items())[:MOST_LINES]):
        ranks = list(best)
        rate, low, high = zip(*best.values())
        name = ", ".join(f"{k} {v}" for k, v in rest if (k, v) not in same) or "fastest distribution"
        perfect = [rate[0] * r / ranks[0] for r in ranks]
        efficiency, least, most = ([100 * y / p for y, p in zip(values, perfect)] for values in (rate, low, high))
        rows += [[unit, name, r, *numbers, e / 100] for r, *numbers, e in zip(ranks, rate, low, high, efficiency)]
        axis.errorbar(ranks, rate, yerr=_around(rate, low, high), capsize=2, label=f"{name}: {efficiency[-1]:.0f} %",
                      **line_style(index))
        axis.plot(ranks, perfect, label="perfect" if index == 0 else None, **LIMIT)
        below.errorbar(ranks, efficiency, yerr=_around(efficiency, least, most), capsize=2, **line_style(index))
    below.axhline(100, **LIMIT)
    axis.set_xscale("log", base=2)
    below.xaxis.set_major_locator(FixedLocator(sorted({r[2] for r in rows})))
    below.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    below.xaxis.set_minor_locator(NullLocator())
    axis.margins(x=0.1, y=0.1)
    plain_log(axis, 10)
    below.set_ylim(0)
    below.set_xlabel("ranks")
    axis.set_ylabel("throughput [tokens/s]")
    below.set_ylabel("efficiency [%]")
    legend_above(axis, title=f"{unit.replace('_', '-')}, {kind} scaling")
    return Sheet(file_name(f"scaling_{kind}", unit), f"{kind.capitalize()} scaling: {unit.replace('_', '-')}",
                 f"{work}: the fastest case for each number, with the confidence interval of its median. Efficiency is "
                 "relative to perfect scaling from the fewest ranks. The legend has it for the most ranks.", figure,
                 ["unit", "line", "ranks", "tokens_per_second", "low", "high", "efficiency"], rows)
