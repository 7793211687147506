"""The changes between two sides: the shift of each case with its interval, sorted."""
import math
import os
from statistics import median

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .bars import UNIT_OF_TIME, unit_for
from .run_json import load_document
from .sheet import COLOURS, Sheet, legend_above, new_figure, size_text

SCHEMA = "shardmark-compare/1"
MOST = 40  # legible rows of a figure
UNITS = [*UNIT_OF_TIME, (1e-9, "ns")]
STYLES = {  # face, edge, marker: distinct in grey by the marker
    "SLOWER": (COLOURS[1], COLOURS[1], ">"),
    "FASTER": (COLOURS[0], COLOURS[0], "<"),
    "EQUIVALENT": ("#888888", "#888888", "o"),
    "INCONCLUSIVE": ("white", "#888888", "o"),
}
PERCENTS = [-99, -95, -90, -80, -66, -50, -33, -20, -10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200,
            400, 900, 1900, 9900]


def load(directory):
    return load_document(os.path.join(directory, "compare.json"), SCHEMA, "a comparison")


def seconds_text(seconds):
    scale, unit = unit_for(seconds, UNITS)
    return f"{seconds / scale:.3g} {unit}"


def _labels(cases):
    """Returns the axes that differ between these cases, and the unit if there are several units."""
    units = {case["unit"] for case in cases}
    labels = []
    for case in cases:
        alike = [c["case"] for c in cases if c["unit"] == case["unit"]]
        words = [case["unit"].replace("_", "-")] if len(units) > 1 else []
        for axis, value in case["case"].items():
            if len({c.get(axis) for c in alike}) > 1:
                number = size_text(int(value)) if axis == "bytes" and value.isdigit() else value
                words.append(number if axis == "bytes" or not value[:1].isdigit() else f"{axis} {value}")
        labels.append(" ".join(words).replace("_", " ") or case["unit"])
    return labels


def _short(label, longest=38):
    return label if len(label) <= longest else f"{label[:longest // 2 - 1]}…{label[-(longest // 2):]}"


def _shown(cases):
    """Returns all cases or, if there are too many, the changed cases first, then the largest undecided shifts."""
    if len(cases) <= MOST:
        return cases
    return sorted(cases, key=lambda c: (c["verdict"] not in ("SLOWER", "FASTER"), -max(c["ratio"], 1 / c["ratio"])))[:MOST]


def _percent_axis(axis):
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    room = 0.17 * math.log(high / low)  # width of a label
    ticks = [1.0]
    for tick in sorted((1 + p / 100 for p in PERCENTS), key=lambda t: -abs(math.log(t))):
        if low <= tick <= high and all(abs(math.log(tick / other)) > room for other in ticks):
            ticks.append(tick)
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * (x - 1):+.3g} %" if x != 1 else "0"))


def shifts(comparison):
    cases = sorted(_shown(comparison["times"]), key=lambda c: c["ratio"])
    if not cases:
        return
    base, new = comparison["labels"]
    labels = _labels(cases)
    figure, axis = new_figure(0.55 + 0.135 * len(cases))
    for row, case in enumerate(cases):
        face, edge, marker = STYLES[case["verdict"]]
        floor = 1 + case["floor"]
        axis.barh(row, floor - 1 / floor, left=1 / floor, height=0.9, color="#EEEEEE", linewidth=0, zorder=0)
        if "interval" in case:
            axis.plot(case["interval"], [row, row], color=edge, linewidth=0.9, solid_capstyle="butt", zorder=2)
        axis.plot(case["ratio"], row, marker=marker, markerfacecolor=face, markeredgecolor=edge, linestyle="none",
                  zorder=3)
        axis.annotate(seconds_text(median(case["base_s"])), (1, row), xycoords=axis.get_yaxis_transform(),
                      xytext=(3, 0), textcoords="offset points", va="center_baseline", fontsize=5.5)
    axis.axvline(1, color="black", linewidth=0.7, zorder=1)
    axis.annotate(f"time in {base}", (1, len(cases) - 0.4), xycoords=axis.get_yaxis_transform(), xytext=(3, 3),
                  textcoords="offset points", fontsize=5.5, style="italic")
    _percent_axis(axis)
    axis.set_ylim(-0.7, len(cases) - 0.3)
    axis.set_yticks(range(len(cases)), [_short(label) for label in labels], fontsize=5.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(f"time in {new} vs. {base}")
    for verdict, (face, edge, marker) in STYLES.items():
        if any(c["verdict"] == verdict for c in cases):
            axis.plot([], [], marker=marker, markerfacecolor=face, markeredgecolor=edge, linestyle="none",
                      label=verdict.lower())
    legend_above(axis)
    left_out = len(comparison["times"]) - len(cases)
    level = 100 * (1 - comparison["level"])
    caption = (f"Hodges-Lehmann shift of {new} ({len(comparison['new'])} launches) compared with {base} "
               f"({len(comparison['base'])} launches) with its {level:.3g} % interval; grey bands: changes too small "
               "to matter." + (f" {left_out} cases that changed least are left out." if left_out else ""))
    yield Sheet("shifts", f"Time in {new} vs. {base}", caption, figure,
                ["case", "verdict", "ratio", "low", "high", "p", "q", "floor", "base_s", "new_s"],
                [[c["name"], c["verdict"], c["ratio"], *c.get("interval", ("", "")), c["p"], c["q"], c["floor"],
                  median(c["base_s"]), median(c["new_s"])]
                 for c in sorted(comparison["times"], key=lambda c: c["ratio"])])
