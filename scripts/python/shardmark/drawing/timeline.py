"""The timeline of a pipeline step, one row per rank."""
import re
from collections import defaultdict

from .bars import UNIT_OF_TIME, labelled, unit_for
from .run_json import Absent
from .sheet import WIDTH, Sheet, file_name, legend_above, new_figure

# "F0", "B3", "W1", "I2"; chunk 2 of micro-batch 0 is "F0.2".
ACTION = re.compile(r"^([FBIW])(\d+)(?:\.(\d+))?$")
WAITING = re.compile("wait|idle|bubble")
# Distinct in grey: later actions of a micro-batch are darker.
KINDS = {
    "F": ("forward", "#A9D8F5"),
    "B": ("backward", "#E69F00"),
    "I": ("backward, inputs", "#D55E00"),
    "W": ("backward, weights", "#00664B"),
    "wait": ("waiting", "#FFFFFF"),
    "other": ("other", "#BBBBBB"),
}
INK = {"W": "white"}  # of the micro-batch's number; black elsewhere
CHUNK = 0.2  # of a bar's height: the dark stripe of the second chunk; the third chunk's is twice as high
STRIPE = "#222222"
TEXT = 5.5  # points
MOST = 20  # cases in a report without --only


def _kind(span):
    # A span of a lane "wait" has the name of the awaited action.
    if WAITING.search(span["lane"]):
        return "wait"
    match = ACTION.match(span["name"])
    if match:
        return match.group(1)
    return "wait" if WAITING.search(span["name"]) else "other"


def _inside(span):
    match = ACTION.match(span["name"])
    return match.group(2) if match else ""


def _chunk(span):
    match = ACTION.match(span["name"])
    return int(match.group(3) or 0) if match else 0


def _gaps(spans, end):
    """Yields the times without an action of the timeline."""
    at = 0.0
    for start, stop in sorted((s["start_s"], s["end_s"]) for s in spans):
        if start > at:
            yield at, start
        at = max(at, stop)
    if end > at:
        yield at, end


def _draw(axis, spans, scale, total):
    ranks = sorted({s["rank"] for s in spans})
    bars = defaultdict(list)  # (row, kind) -> [(start, duration)], drawn together, which is much faster
    stripes = defaultdict(list)  # (row, chunk) -> the same
    for row, rank in enumerate(ranks):
        own = [s for s in spans if s["rank"] == rank]
        bars[row, "wait"] += [(start / scale, (stop - start) / scale) for start, stop in _gaps(own, total)]
        for span in own:
            kind = _kind(span)
            place = (span["start_s"] / scale, (span["end_s"] - span["start_s"]) / scale)
            bars[row, kind].append(place)
            if kind != "wait" and _chunk(span):
                stripes[row, _chunk(span)].append(place)
            text = "" if kind == "wait" else _inside(span)
            # Write the number only if its digits fit, because a text over its neighbours misleads.
            room = (span["end_s"] - span["start_s"]) / total * (WIDTH - 0.5) * 72
            if text and room > TEXT * 0.62 * len(text) + 1:
                axis.text(place[0] + place[1] / 2, row - min(0.3, 0.08 * _chunk(span)), text, ha="center",
                          va="center_baseline", fontsize=TEXT, color=INK.get(kind, "black"), zorder=3)
    drawn = {}
    for (row, kind), places in bars.items():
        if places:
            label, colour = KINDS[kind]
            waits = kind == "wait"
            axis.broken_barh(places, (row - 0.4, 0.8), facecolor=colour, edgecolor="#9A9A9A" if waits else "white",
                             hatch="//////" if waits else None, linewidth=0.0 if waits else 0.4,
                             zorder=1.5 if waits else 2)
            drawn.setdefault(kind, label)
    for (row, chunk), places in stripes.items():
        height = min(0.6, CHUNK * chunk) * 0.8
        axis.broken_barh(places, (row + 0.4 - height, height), facecolor=STRIPE, edgecolor="white", linewidth=0.4,
                         zorder=2.5)
    return ranks, drawn


def timeline(run):
    cases = [c for c in run.with_key("timeline") if c.axes.get("PP") != "1"]
    if not cases:
        raise Absent("no case with more than one stage carries a timeline")
    for case, label in labelled(run, cases, MOST, "pipeline timeline", "timeline"):
        spans = sorted(case.first("timeline"), key=lambda s: (s["rank"], s["start_s"]))
        first = min(s["start_s"] for s in spans)
        spans = [{**s, "start_s": s["start_s"] - first, "end_s": s["end_s"] - first} for s in spans]
        total = max(s["end_s"] for s in spans)
        scale, time_unit = unit_for(total, UNIT_OF_TIME)
        count = len({s["rank"] for s in spans})
        figure, axis = new_figure(0.45 + 0.2 * count)
        ranks, drawn = _draw(axis, spans, scale, total)
        axis.set_yticks(range(len(ranks)), ranks)
        axis.set_ylim(len(ranks) - 0.5, -0.5)
        axis.set_xlim(0, total / scale)
        axis.grid(visible=False)
        axis.set_ylabel("rank")
        axis.set_xlabel(f"time in the step [{time_unit}]")
        handles = [axis.barh(0, 0, facecolor=KINDS[k][1], edgecolor="#9A9A9A", linewidth=0.4,
                             hatch="//////" if k == "wait" else None) for k in KINDS if k in drawn]
        labels = [drawn[k] for k in KINDS if k in drawn]
        if any(_chunk(s) for s in spans):
            handles.append(axis.barh(0, 0, facecolor=STRIPE))
            labels.append("stripe: chunk 1, wider: 2 …" if max(_chunk(s) for s in spans) > 1 else "stripe: second chunk")
        legend_above(axis, handles=handles, labels=labels)
        title = f"{case.unit.replace('_', '-')}, {label}"
        yield Sheet(file_name("timeline", case.unit, label),
                    f"Timeline of a step: {title}",
                    "One row per rank, with the micro-batch inside its bar. A dark stripe below marks a further chunk of the "
                    "stage. Hatched: the rank waits.", figure,
                    ["unit", "case", "rank", "lane", "name", "start_s", "end_s"],
                    [[case.unit, label, s["rank"], s["lane"], s["name"], s["start_s"], s["end_s"]]
                     for s in spans])
