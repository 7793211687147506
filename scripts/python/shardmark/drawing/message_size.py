"""Bus bandwidth and speed-up over the library, by message size."""
import statistics
from collections import defaultdict

from .run_json import Absent
from .sheet import LIBRARY, LIMIT, Sheet, byte_axis, file_name, legend_above, line_style, new_figure, plain_log

# A figure for each value of these; the other axes without bytes distinguish its lines.
OF_THE_FIGURE = ("ranks", "dtype")


def _figures(cases, about):
    """Returns {(unit, ranks, dtype): {line: [cases by size]}}. The name of a line has the axes that differ."""
    groups = defaultdict(list)
    for case in cases:
        groups[(case.unit,) + tuple(case.axes.get(axis, "") for axis in OF_THE_FIGURE)].append(case)
    figures = {}
    for key, members in groups.items():
        names = [axis for axis in members[0].axes if axis not in OF_THE_FIGURE + ("bytes",)]
        varying = [n for n in names if len({m.axes.get(n) for m in members}) > 1]
        lines = defaultdict(list)
        for member in members:
            words = [member.axes.get(n, "") for n in varying] or [member.axes.get("algorithm", member.unit)]
            lines[", ".join(w.replace("_", " ") for w in words)].append(member)
        for line in lines.values():
            line.sort(key=lambda c: c.number("bytes"))
        figures[key] = dict(sorted(lines.items()))
    return _with_curves(figures, about)


def _with_curves(figures, about):
    """Leaves out figures of fewer than three sizes (they are in the table), and in the others single sizes
    unless they failed."""
    kept = {}
    for key, lines in sorted(figures.items()):
        if max(map(len, lines.values())) >= 3:
            kept[key] = {name: line for name, line in lines.items()
                         if len(line) > 1 or _is_library(line[0]) or line[0].verdict == "fail"}
        else:
            print(f"figures: {about}: {_subject(*key)}: fewer than three sizes")
    return kept


def _subject(unit, ranks, dtype):
    words = [unit.replace("_", "-")]
    if ranks:
        words.append(f"{ranks} rank{'' if ranks == '1' else 's'}")
    return ", ".join(words + ([dtype] if dtype else []))


def _styles(cases):
    """Returns a function case -> style, the same in all figures: colour and marker by algorithm, dash by the rest."""
    def algorithm(case):
        return case.axes.get("algorithm", "")

    def rest(case):
        return case.axes.get("transport", "")

    algorithms = sorted({algorithm(c) for c in cases} - {"library"})
    rests = sorted({rest(c) for c in cases if not _is_library(c)}, key=lambda r: (r != "shared_memory", r))

    def style(case):
        if _is_library(case):
            return LIBRARY
        return line_style(algorithms.index(algorithm(case)), rests.index(rest(case)))

    return style


def _is_library(case):
    return case.axes.get("algorithm") == "library"


def _mark_failures(axis, points):
    wrong = [(x, y) for x, y, *_, case in points if case.verdict == "fail"]
    if wrong:
        axis.plot(*zip(*wrong), linestyle="none", marker="x", markersize=6, color="#D50000", markeredgewidth=1.4,
                  label="failed an oracle", zorder=5)


def _library_line(lines):
    """Returns [(bytes, busbw of the library)]: its own cases, and its times measured with other cases."""
    found = defaultdict(list)
    for case in (c for line in lines.values() for c in line):
        size, busbw, beside = case.number("bytes"), case.number("busbw_GBps"), case.number("library_s")
        if _is_library(case):
            found[size].append(busbw)
        elif beside:
            found[size].append(busbw * case.seconds() / beside)
    return [(size, statistics.median(values)) for size, values in sorted(found.items())]


def _draw_line(axis, line, key, style, name):
    """Draws a line with its band, labelled if it has a name; returns [(bytes, value, low, high, case)]."""
    # The value is a rate, so the interval of the time is inverted.
    points = [(c.number("bytes"), c.number(key), c.number(key) * c.seconds() / c.interval()[1],
               c.number(key) * c.seconds() / c.interval()[0], c) for c in line]
    x, y, low, high, _ = zip(*points)
    if name:
        axis.plot(x, y, label=name, **style)
    axis.fill_between(x, low, high, color=style["color"], alpha=0.22, linewidth=0)
    return points


def _label_axes(axis, rows, what, subject):
    byte_axis(axis, [r[4] for r in rows])
    axis.set_xlabel("message size")
    axis.set_ylabel(what)
    legend_above(axis, title=subject)


def bus_bandwidth(run):
    cases = [c for c in run.with_key("busbw_GBps") if c.number("bytes")]
    if not cases:
        raise Absent("no case carries a bus bandwidth over a message size")
    style_of = _styles(cases)
    for (unit, ranks, dtype), lines in _figures(cases, "bus bandwidth").items():
        figure, axis = new_figure(1.9)
        rows, limits, points = [], {}, []
        library = _library_line(lines)
        if library:
            axis.plot(*zip(*library), label="library", **LIBRARY)
        for name, line in lines.items():
            drawn = _draw_line(axis, line, "busbw_GBps", style_of(line[0]), None if _is_library(line[0]) else name)
            points += drawn
            for size, busbw, least, most, case in drawn:
                limit_s = case.number("limit_s")
                limit = busbw * case.seconds() / limit_s if limit_s else None
                if limit:
                    limits[size] = max(limit, limits.get(size, 0))
                rows.append([unit, name, ranks, dtype, round(size), busbw, least, most,
                             "" if limit is None else limit, len(case.timed()), case.verdict])
        with_case = {c.number("bytes") for line in lines.values() for c in line if _is_library(c)}
        rows += [[unit, "library", ranks, dtype, round(size), busbw, "", "", "", "", ""]
                 for size, busbw in library if size not in with_case]
        if limits:
            axis.plot(*zip(*sorted(limits.items())), label="limit", zorder=1.5, **LIMIT)
        _mark_failures(axis, points)
        plain_log(axis, 10)
        subject = _subject(unit, ranks, dtype)
        _label_axes(axis, rows, "bus bandwidth [GB/s]", subject)
        yield Sheet(
            file_name("bus_bandwidth", unit, ranks and f"{ranks}_ranks", dtype), f"Bus bandwidth: {subject}",
            "Median with its confidence interval (with several launches: their range). Dotted: the limit, from "
            "the memory bandwidth measured in this run. Grey crosses: the library, as reference, timed in "
            "alternation with the others.",
            figure, ["unit", "line", "ranks", "dtype", "bytes", "busbw_GBps", "busbw_low_GBps", "busbw_high_GBps",
                     "limit_GBps", "launches", "verdict"], rows)


def speedup(run):
    cases = [c for c in run.with_key("speedup_over_library") if c.number("bytes") and not _is_library(c)]
    if not cases:
        raise Absent("no case carries a speed-up over the library over a message size")
    style_of = _styles(cases)
    for (unit, ranks, dtype), lines in _figures(cases, "speed-up over the library").items():
        figure, axis = new_figure(1.8)
        rows, points = [], []
        for name, line in lines.items():
            drawn = _draw_line(axis, line, "speedup_over_library", style_of(line[0]), name)
            points += drawn
            rows += [[unit, name, ranks, dtype, round(b), s, least, most, c.verdict] for b, s, least, most, c in drawn]
        axis.axhline(1, color="black", linewidth=0.8)
        _mark_failures(axis, points)
        lowest, highest = min(r[6] for r in rows), max(r[7] for r in rows)
        axis.set_ylim(min(0.9, lowest) * 0.9, max(1.1, highest) * 1.12)
        plain_log(axis, 2 if highest / lowest < 200 else 10)
        subject = _subject(unit, ranks, dtype)
        _label_axes(axis, rows, "speed-up over the library", subject)
        yield Sheet(
            file_name("speedup", unit, ranks and f"{ranks}_ranks", dtype), f"Speed-up over the library: {subject}",
            "The library's time over ours, timed in alternation; above 1 is faster than the library. Band: our "
            "confidence interval.",
            figure, ["unit", "line", "ranks", "dtype", "bytes", "speedup_over_library", "speedup_low",
                     "speedup_high", "verdict"], rows)
