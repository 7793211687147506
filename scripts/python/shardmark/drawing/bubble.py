"""A pipeline's idle time, measured and from its paper's formula, over the number of micro-batches."""
from collections import defaultdict

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .run_json import Absent
from .sheet import Sheet, file_name, legend_above, line_style, new_figure

UNIT = "pipeline_bubble"


def bubble(run):
    """One figure for each number of stages: lines are formulas, marks are measured values."""
    stages = defaultdict(lambda: defaultdict(dict))
    for case in run.with_key("bubble_expected"):
        if case.unit != UNIT or case.number("bubble_measured") is None:
            continue
        rest = tuple((k, v) for k, v in case.axes.items() if k not in ("micro_batches", "ranks"))
        stages[case.ranks][rest][int(case.axes["micro_batches"])] = case
    if not stages:
        raise Absent(f"no case of {UNIT}")
    for ranks, series in sorted(stages.items()):
        figure, axis = new_figure(2.1)
        rows, counts = [], set()
        constant = {pair for pair in set.union(*map(set, series)) if all(pair in rest for rest in series)}
        for index, (rest, by_count) in enumerate(series.items()):
            name = _name(rest, constant)
            members = sorted(by_count.items())
            counts.update(by_count)
            style = line_style(index)
            axis.plot([m for m, _ in members], [100 * c.number("bubble_expected") for _, c in members],
                      color=style["color"], linestyle=style["linestyle"], linewidth=0.8, marker="_", markersize=10)
            axis.plot([m for m, _ in members], [100 * c.number("bubble_measured") for _, c in members], label=name,
                      color=style["color"], marker=style["marker"], linestyle="none", markerfacecolor="white")
            rows += [[UNIT, name, ranks, m, c.number("bubble_measured"), c.number("bubble_expected")]
                     for m, c in members]
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(sorted(counts)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.margins(x=0.08)
        axis.set_ylim(0, axis.get_ylim()[1])
        axis.set_xlabel("micro-batches")
        axis.set_ylabel("idle [% of the step]")
        legend_above(axis, title=f"{ranks} stages: marks measured, lines and dashes formula")
        yield Sheet(file_name("bubble", f"{ranks}_stages"), f"Bubble of pipeline schedules, {ranks} stages",
                    "Idle time of all stages divided by the time of a step; F = I = W. Marks: measured. Lines and dashes: the "
                    "papers' formulas, or a simulated step if a formula requires more micro-batches.", figure,
                    ["unit", "line", "stages", "micro_batches", "measured", "expected"], rows)


def _name(rest, constant):
    """Returns the schedule and the other axes that distinguish the lines."""
    axes = dict(rest)
    words = [axes["schedule"].replace("_", "-")]
    if axes["schedule"].startswith("interleaved"):
        words.append(f"v {axes['virtual_stages']}")
    words += [f"{k.replace('_', ' ')} {v}" for k, v in rest
              if k not in ("schedule", "virtual_stages") and (k, v) not in constant]
    return ", ".join(words)
