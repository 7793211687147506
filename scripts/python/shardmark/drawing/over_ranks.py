"""Panels of quantities over the number of ranks, with a line for each algorithm."""
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .bars import unit_for
from .sheet import WIDTH, legend_above, line_style, plain_log


def panels(values, names, quantities, xlabel):
    """values: {name: {ranks: a number for each quantity}}. names: all, in the order of their styles. quantities:
    [(label, units)]. Numbers that are not positive are left out."""
    figure = Figure(figsize=(2 * WIDTH, 2.4))
    axes = figure.subplots(1, len(quantities))
    ticks = sorted({ranks for of_ranks in values.values() for ranks in of_ranks})
    handles = []
    for index, (axis, (label, units)) in enumerate(zip(axes, quantities)):
        scale, word = unit_for(max(of[index] for of_ranks in values.values() for of in of_ranks.values()), units)
        for name in (name for name in names if name in values):
            points = [(ranks, of[index] / scale) for ranks, of in values[name].items() if of[index] > 0]
            if points:
                handles += axis.plot(*zip(*points), label=name, **line_style(names.index(name)))[:index == 0]
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(ticks))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.margins(x=0.1, y=0.1)
        plain_log(axis, 10)
        axis.set_xlabel(xlabel)
        axis.set_ylabel(f"{label} [{word}]")
    legend_above(axes[0], handles=handles, labels=[handle.get_label() for handle in handles])
    return figure
