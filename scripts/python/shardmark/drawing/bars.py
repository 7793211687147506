"""Stacked bars per case: the time of a step by part, and measured memory next to its formula."""
import re
import textwrap
from collections import defaultdict

from .run_json import Absent, varied
from .sheet import Sheet, decimal_text, file_name, fill_style, label_bars, legend_above, new_figure, part_style, size_text

AT_MOST = 14  # bars that one figure holds legibly
FEW = 2 * AT_MOST  # cases of a unit that are all drawn; with more cases, one figure unless --only
UNIT_OF_BYTES = [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")]
UNIT_OF_TIME = [(1, "s"), (1e-3, "ms"), (1e-6, "µs")]


def varying_axes(cases):
    names = dict.fromkeys(axis for case in cases for axis in case.axes)
    return [n for n in names if len({c.axes.get(n) for c in cases}) > 1]


def labels_of(cases):
    """Returns a short text for each case of a unit, from the axes that differ."""
    varying = varying_axes(cases)
    if {"TP", "PP", "DP"} & set(varying):
        varying = [axis for axis in varying if axis != "ranks"]  # their product
    labels = []
    for case in cases:
        words = [word_of(n, case.axes[n]) for n in varying if n in case.axes]
        labels.append(folded([word for word in words if word]) or case.unit.replace("_", " "))
    return labels


def label_of(case, cases):
    """Returns the label of a case among the cases of its unit, on one line."""
    of_the_unit = [c for c in cases if c.unit == case.unit]
    return " ".join(labels_of(of_the_unit)[of_the_unit.index(case)].split())


def labelled(run, cases, most, figure, key):
    """Yields (case, label) of the cases to draw: all with --only, otherwise `most`."""
    chosen = cases if run.only else varied(cases, most)
    if len(chosen) < len(cases):
        print(f"figures: {figure}: {len(chosen)} of {len(cases)} cases drawn; --only {key} draws them all")
    for case in chosen:
        yield case, label_of(case, cases)


# Options that a label names only if they are on, in the terms of Megatron-LM's papers.
OPTIONS = {"sequence-parallel": "sequence parallel", "distribute-saved-activations": "distributed checkpoints",
           "cpu-checkpointing": "checkpoints on the host", "uneven-tokens": "uneven tokens",
           "fused-epilogues": "fused epilogues",
           "offload_optimizer": "states on", "offload_param": "values on",
           "use-flash-attn": "blockwise attention", "recompute-granularity": "recompute", "recompute-method": "by"}
OFF = {"0", "off", "none", "uniform"}


def word_of(axis, value):
    """Returns the words of an axis in a label, or an empty text."""
    plain = value.replace("_", " ")
    if axis in OPTIONS:
        return "" if value in OFF else OPTIONS[axis] if value in ("1", "on") else f"{OPTIONS[axis]} {plain}"
    if axis == "bytes" and value.isdigit():
        return size_text(int(value))
    # "ring" is clear without its axis; "2" and "on" are not.
    if re.fullmatch(r"[\d.x\-]+|on|off|true|false", value):
        return f"{axis.replace('_', ' ')} {plain}"
    return plain


def folded(words, width=29):
    """Joins the words with commas, in lines of at most `width` and a comma. A longer word is broken at its spaces."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 2 > width:
            lines[-1] += ","
            lines.append("")
        lines[-1] += f", {word}" if lines[-1] else word
        lines[-1:] = textwrap.wrap(lines[-1], width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def pages(run, cases, figure, key):
    """Yields (unit, part, cases), with a legible number of bars per figure."""
    units = defaultdict(list)
    for case in cases:
        units[case.unit].append(case)
    for unit, members in units.items():
        chosen = members if run.only else varied(members, AT_MOST if len(members) > FEW else FEW)
        if len(chosen) < len(members):
            print(f"figures: {figure}: {len(chosen)} of {len(members)} cases of {unit} drawn; --only {key} draws them all")
        parts = -(-len(chosen) // AT_MOST)
        size = -(-len(chosen) // parts)
        for part in range(parts):
            yield unit, f"part_{part + 1}" if parts > 1 else "", chosen[part * size:(part + 1) * size]


def unit_for(largest, units):
    return next(((scale, name) for scale, name in units if largest >= scale), units[-1])


def height_of(labels, per_bar):
    # Bars are evenly spaced, so the longest label determines the height.
    return 0.45 + len(labels) * max(per_bar, max(0.125 * (1 + label.count("\n")) for label in labels))


def step_time(run):
    cases = [c for c in run.with_key("breakdown_s") if c.first("breakdown_s")]
    if not cases:
        raise Absent("no case carries a breakdown of its time")
    for unit, part, members in pages(run, cases, "time of a step by part", "step_time"):
        names = list(dict.fromkeys(row["name"] for c in members for row in c.first("breakdown_s")))
        labels = labels_of(members)
        scale, time_unit = unit_for(max(c.seconds() for c in members), UNIT_OF_TIME)
        figure, axis = new_figure(height_of(labels, 0.24))
        rows = []
        left = [0.0] * len(members)
        for index, name in enumerate(names):
            widths = [sum(r["seconds"] for r in c.first("breakdown_s") if r["name"] == name) for c in members]
            axis.barh(range(len(members)), [w / scale for w in widths], left=left, height=0.66,
                      label=name.replace("_", " "), **part_style(name, index))
            left = [at + w / scale for at, w in zip(left, widths)]
            rows += [[unit, label.replace("\n", " "), name, w, c.seconds(), c.verdict]
                     for label, w, c in zip(labels, widths, members)]
        axis.plot([c.seconds() / scale for c in members], range(len(members)), linestyle="none", marker="|",
                  markersize=11, markeredgewidth=1.3, color="black", label="median step")
        label_bars(axis, labels)
        axis.set_xlabel(f"time of a step [{time_unit}]")
        title = unit.replace("_", "-")
        # The parts in the order of the bars, then the tick.
        handles, labels = axis.get_legend_handles_labels()
        legend_above(axis, title=title, handles=handles[1:] + handles[:1], labels=labels[1:] + labels[:1])
        yield Sheet(file_name("step_time", unit, part), f"Time of a step by part: {title}",
                    "The time of a step by part on rank 0. The black tick is the median over steps of the slowest "
                    "rank. The bar has the parts of one rank, so it may be shorter.",
                    figure, ["unit", "case", "part", "seconds", "step_seconds", "verdict"], rows)


def memory(run):
    # A single category is a number, not a figure.
    cases = [c for c in run.with_key("memory") if len(c.first("memory")) > 1]
    if not cases:
        raise Absent("no case carries its memory by more than one category")
    for unit, part, members in pages(run, cases, "memory by category", "memory"):
        names = list(dict.fromkeys(row["category"] for c in members for row in c.first("memory")))
        labels = labels_of(members)
        peak = max(sum(r[k] for r in c.first("memory")) for c in members for k in ("measured", "expected"))
        scale, byte_unit = unit_for(peak, UNIT_OF_BYTES)
        figure, axis = new_figure(height_of(labels, 0.36))
        rows = []
        for side, (key, offset) in enumerate((("measured", -0.19), ("expected", 0.19))):
            left = [0.0] * len(members)
            places = [y + offset for y in range(len(members))]
            for index, name in enumerate(names):
                widths = [sum(r[key] for r in c.first("memory") if r["category"] == name) for c in members]
                style = fill_style(index)
                if side:  # the formula: the same hue, paler
                    style["alpha"] = 0.5
                axis.barh(places, [w / scale for w in widths], left=left, height=0.34,
                          label=None if side else name.replace("_", " "), **style)
                left = [at + w / scale for at, w in zip(left, widths)]
                if not side:
                    rows += [[unit, label.replace("\n", " "), name, w,
                              sum(r["expected"] for r in c.first("memory") if r["category"] == name), c.verdict]
                             for label, w, c in zip(labels, widths, members)]
            for case, place, end in zip(members, places, left):
                agree = all(r["measured"] == r["expected"] for r in case.first("memory"))
                text = decimal_text(end) + ("" if not side else " =" if agree else " ≠")
                axis.annotate(text, (end, place), xytext=(2, 0), textcoords="offset points", va="center",
                              fontsize=5.5)
        label_bars(axis, labels)
        axis.set_xlim(0, peak / scale * 1.14)
        axis.set_xlabel(f"peak memory [{byte_unit}]")
        title = unit.replace("_", "-")
        legend_above(axis, title=f"{title}: measured above, formula below (paler)")
        yield Sheet(file_name("memory", unit, part), f"Memory by category: {title}",
                    "Peak bytes of rank 0 by category: counted in the allocator (upper bar), and from the closed formula "
                    "(lower, paler bar). The sign = means that every category agrees to the byte.",
                    figure, ["unit", "case", "category", "measured_bytes", "expected_bytes", "verdict"], rows)
