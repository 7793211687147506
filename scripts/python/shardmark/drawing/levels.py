"""Cases over runs: times, levels, and changes of software or hardware."""
import os

from matplotlib.ticker import FuncFormatter, MaxNLocator

from .bars import unit_for
from .run_json import load_document
from .sheet import COLOURS, Sheet, file_name, new_figure
from .shifts import UNITS

SCHEMA = "shardmark-history/1"


def load(directory):
    return load_document(os.path.join(directory, "history.json"), SCHEMA, "a history")


def levels(history):
    for track in history["tracks"]:
        runs = track["runs"]
        if not runs:
            continue
        factor, unit = unit_for(max(run["seconds"] for run in runs), UNITS)
        figure, axis = new_figure(1.7)
        places = range(len(runs))
        axis.plot(places, [run["seconds"] / factor for run in runs], linestyle="none", marker="o", color="#888888")
        first = 0
        for i in range(1, len(runs) + 1):
            if i < len(runs) and not runs[i]["change"] and not runs[i]["breaks"]:
                continue
            level = runs[first]["level"] / factor
            axis.plot([first - 0.4, i - 0.6], [level, level], color=COLOURS[1] if runs[first]["change"] else COLOURS[0],
                      linewidth=1.4, linestyle="--" if runs[first]["change"] else "-", solid_capstyle="butt")
            first = i
        for i in places:
            if runs[i]["breaks"]:
                axis.axvline(i - 0.5, color="black", linewidth=0.6, linestyle=":")
                text = ".".join(runs[i]["breaks"][0]["field"].split(".")[-2:])
                more = len(runs[i]["breaks"]) - 1
                axis.annotate(text + (f" +{more}" if more else ""), (i - 0.5, 0), xycoords=axis.get_xaxis_transform(),
                              xytext=(2, 3), textcoords="offset points", va="bottom", fontsize=5.5, rotation=90)
        axis.set_ylim(0, 1.15 * max(run["seconds"] for run in runs) / factor)
        axis.set_xlim(-0.8, len(runs) - 0.2)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{round(x) + 1}"))
        axis.set_xlabel(f"run by date, from {runs[0]['date'][:10]} to {runs[-1]['date'][:10]}")
        axis.set_ylabel(f"time [{unit}]")
        title = track["name"].replace("_", "-")
        yield Sheet(file_name("history", track["name"]), f"Over time: {title}",
                    "Median time of each run, and the median of each level: dashed after a change (Pettitt's test, "
                    "p at most 0.01), solid before the first change. Dotted: the software or hardware changed, so "
                    "levels on the two sides are not compared.", figure,
                    ["case", "run", "date", "commit", "seconds", "level", "change", "breaks"],
                    [[track["name"], r["run"], r["date"], r["commit"], r["seconds"], r["level"], r["change"],
                      "; ".join(b["field"] for b in r["breaks"])] for r in runs])
