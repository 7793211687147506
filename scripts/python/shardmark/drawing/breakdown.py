"""The time of a step by part on every rank, and the waits between ranks."""
from matplotlib.colors import Normalize

from .bars import UNIT_OF_TIME, labelled, unit_for
from .link_matrix import value_text
from .run_json import Absent
from .sheet import Sheet, file_name, label_bars, legend_above, new_figure, part_style

MOST = 8         # cases in a report without --only
MOST_CELLS = 16  # ranks up to which a cell holds its value


def step_breakdown(run):
    cases = [c for c in run.with_key("step_breakdown") if len(c.first("step_breakdown")["seconds"]) > 1]
    if not cases:
        raise Absent("no case of several ranks carries the breakdown of its step")
    for case, label in labelled(run, cases, MOST, "step by rank", "step_breakdown"):
        yield _sheet(case, label)


def _sheet(case, label):
    found = case.first("step_breakdown")
    ranks = len(found["seconds"])
    waited = any(any(row) for row in found["waited_s"])
    scale, time_unit = unit_for(max(map(sum, found["seconds"])), UNIT_OF_TIME)
    bars, cells = 0.42 + 0.2 * ranks, 0.4 + max(0.75, 0.18 * ranks)
    figure, axes = new_figure(bars + (cells if waited else 0), rows=2 if waited else 1, squeeze=False,
                              height_ratios=[bars, cells] if waited else [1])
    axis = axes[0][0]
    rows = _bars(axis, found, scale)
    label_bars(axis, range(ranks))
    axis.set_ylabel("rank")
    axis.set_xlabel(f"time in a step [{time_unit}]")
    if waited:
        _waited(axes[1][0], found["waited_s"])
    title = case.unit.replace("_", "-") + (f", {label}" if label != case.unit.replace("_", " ") else "")
    legend_above(axis)
    return Sheet(file_name("step_breakdown", case.unit, label), f"A step by rank: {title}",
                 "The time of the typical step by part on each rank. The parts of a bar do not overlap and sum to the step. "
                 "The thin bar below is communication at the same time, on another thread. The cells are the seconds that "
                 "a rank (row) waited for another rank, within its bar.", figure,
                 ["unit", "case", "rank", "kind", "part", "seconds", "verdict"],
                 [[case.unit, label, *row, case.verdict] for row in rows])


def _bars(axis, found, scale):
    """Draws the bars and returns [rank, kind, part, seconds]."""
    rows = []
    ranks = range(len(found["seconds"]))
    for key, names, place, height, kind in (("seconds", "parts", 0.0, 0.6, "part"),
                                            ("hidden_s", "hidden_parts", 0.4, 0.14, "hidden")):
        left = [0.0 for _ in ranks]
        for index, name in enumerate(found[names]):
            widths = [found[key][rank][index] / scale for rank in ranks]
            shown = name.replace("communication", "comm.") + ("" if kind == "part" else ", hidden")
            axis.barh([rank + place for rank in ranks], widths, left=left, height=height, label=shown,
                      **part_style(name, index))
            left = [a + b for a, b in zip(left, widths)]
            rows += [[rank, kind, name, found[key][rank][index]] for rank in ranks]
    rows += [[rank, "waited", f"for rank {peer}", seconds] for rank in ranks
             for peer, seconds in enumerate(found["waited_s"][rank]) if peer != rank]
    return rows


def _waited(axis, waited):
    ranks = len(waited)
    largest = max(map(max, waited))
    scale, time_unit = unit_for(largest, UNIT_OF_TIME)
    values = [[float("nan") if a == b else waited[a][b] / scale for b in range(ranks)] for a in range(ranks)]
    norm = Normalize(0, largest / scale)
    mesh = axis.pcolormesh(range(ranks), range(ranks), values, cmap="Greys", norm=norm, shading="nearest",
                           edgecolors="#CCCCCC", linewidth=0.4)
    for row in range(ranks):
        for column in range(ranks):
            if row != column and ranks <= MOST_CELLS and waited[row][column] > 0:
                axis.text(column, row, value_text(values[row][column], 3 if ranks <= 8 else 2), ha="center",
                          va="center_baseline", fontsize=6 if ranks <= 8 else 4,
                          color="white" if norm(values[row][column]) > 0.55 else "black")
    axis.set_xticks(range(ranks), range(ranks))
    axis.set_yticks(range(ranks), range(ranks))
    axis.set_ylim(ranks - 0.5, -0.5)
    axis.grid(visible=False)
    axis.tick_params(length=0)
    axis.set_ylabel("rank that waits")
    axis.set_xlabel("rank waited for")
    axis.figure.colorbar(mesh, ax=axis, label=f"waited [{time_unit}]", pad=0.03, fraction=0.05).outline.set_visible(False)
