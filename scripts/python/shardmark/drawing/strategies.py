"""One model trained by several strategies (`shardmark recipes compare`): memory, bytes, time and bubble."""
import json
import os

from matplotlib.figure import Figure

from .bars import UNIT_OF_BYTES, UNIT_OF_TIME, unit_for
from .run_json import SHORT, Absent, BadRun
from .sheet import WIDTH, Sheet, fill_style, label_bars, legend_above

GROUPS = ["tp", "cp", "pp", "dp", "ep"]


def strategies(run):
    path = os.path.join(run.directory, "strategies.json")
    if not os.path.exists(path):
        return  # only recipes compare has this figure
    try:
        with open(path, encoding="utf-8") as file:
            named = [(row["name"], {SHORT.get(k, k): v for k, v in row["axes"].items()}) for row in json.load(file)["strategies"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRun(f"{path}: {error}") from error
    members = [(name, case) for name, axes in named for case in run.with_key("memory")
               if axes.items() <= case.axes.items()]
    if not members:
        raise Absent("no strategy was measured")
    names, cases = zip(*members)
    figure = Figure(figsize=(2 * WIDTH, 1.0 + 0.19 * len(cases)))
    memory, wire, time, bubble = figure.subplots(1, 4, sharey=True, width_ratios=[3, 2, 2, 2])
    places, rows = range(len(cases)), []

    categories = list(dict.fromkeys(row["category"] for c in cases for row in c.first("memory")))
    stacks = {category: [sum(r["measured"] for r in c.first("memory") if r["category"] == category) for c in cases]
              for category in categories}
    scale, unit = unit_for(max(map(sum, zip(*stacks.values()))), UNIT_OF_BYTES)
    handles = stack(memory, stacks, scale, 0)
    memory.set_xlabel(f"peak memory [{unit}]")

    sent = {f"over {group}": [c.number(f"wire_bytes_{group}") or 0 for c in cases] for group in GROUPS}
    sent = {name: values for name, values in sent.items() if any(values)}
    if sent:
        scale, unit = unit_for(max(map(sum, zip(*sent.values()))), UNIT_OF_BYTES)
        handles += stack(wire, sent, scale, len(categories))
        wire.set_xlabel(f"sent by a rank [{unit}]")

    scale, unit = unit_for(max(c.seconds() for c in cases), UNIT_OF_TIME)
    time.barh(places, [c.seconds() / scale for c in cases], height=0.66, facecolor="#7F7F7F")
    time.set_xlabel(f"step [{unit}]")
    seen = [100 * (c.number("bubble_measured") or 0) for c in cases]
    formula = [100 * (c.number("bubble_expected") or 0) for c in cases]
    bubble.barh(places, seen, height=0.66, facecolor="#D9D9D9")
    bubble.plot([f or None for f in formula], places, linestyle="none", marker="|", markersize=9,
                markeredgewidth=1.3, color="black")
    bubble.set_xlabel("bubble [%], formula |")
    for axis in (memory, wire, time, bubble):
        label_bars(axis, names)
    for name, case in members:
        rows += [[name, "memory", r["category"], float(r["measured"]), float(r["expected"]), case.verdict]
                 for r in case.first("memory")]
        rows += [[name, "sent", group, case.number(f"wire_bytes_{group}"), None, case.verdict]
                 for group in GROUPS if case.number(f"wire_bytes_{group}")]
        rows.append([name, "step_s", "", case.seconds(), None, case.verdict])
        if case.number("bubble_expected"):
            rows.append([name, "bubble", "", case.number("bubble_measured"), case.number("bubble_expected"), case.verdict])
    legend_above(memory, handles=handles, labels=[handle.get_label() for handle in handles])
    yield Sheet("strategies", "One model by several strategies",
                "Peak memory of rank 0, bytes that a rank sends in a step over each group, time of a step, and the time "
                "that stages wait with its formula. Volume and memory equal their closed formulas where the oracles pass.",
                figure, ["strategy", "quantity", "part", "measured", "expected", "verdict"], rows)


def stack(axis, parts, scale, first):
    """Draws stacked bars and returns one handle for each part."""
    left, handles = None, []
    for index, (name, values) in enumerate(parts.items()):
        widths = [value / scale for value in values]
        left = left or [0.0] * len(widths)
        handles.append(axis.barh(range(len(widths)), widths, left=left, height=0.66, label=name.replace("_", " "),
                                 **fill_style(first + index)))
        left = [at + width for at, width in zip(left, widths)]
    return handles
