#!/usr/bin/env python3
"""Checks the layout of figures: texts that overlap, leave the figure, or are too small to read.

    scripts/figure_layout.py RUN_DIR    prints a line for each finding; exit 1 if there is any
"""
import itertools
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
from shardmark.interpreter import need_matplotlib  # noqa: E402

need_matplotlib()
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from shardmark import figures  # noqa: E402
from shardmark.drawing.run_json import Absent, load  # noqa: E402

SHOWN = 574 * 0.75  # points: the width of a figure in a report of 1280 pixels
SMALLEST = 6.5  # points, at that width
TOUCH = 0.4  # points by which two boxes may overlap: boxes include ascents that no glyph fills


def texts_of(figure):
    """Returns the visible texts of a figure. Ticks outside of an axis's limits are not drawn."""
    texts = list(figure.texts)
    for legend in [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]:
        texts += [legend.get_title(), *legend.get_texts()]
    for axes in figure.axes:
        texts += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_visible() and axes.axison:
                drawn = axis._update_ticks()  # pylint: disable=protected-access
                texts += [label for tick in drawn for label in (tick.label1, tick.label2)]
                texts.append(axis.offsetText)
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def findings(figure):
    """Yields a line for each layout error of a figure that is laid out."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    point = figure.dpi / 72
    page = figure.bbox
    boxes = [(text, text.get_window_extent(renderer)) for text in texts_of(figure)]
    boxes += [(legend, legend.get_window_extent(renderer)) for legend in figure.legends]
    for thing, box in boxes:
        out = max(page.x0 - box.x0, box.x1 - page.x1, page.y0 - box.y0, box.y1 - page.y1) / point
        if out > TOUCH:
            yield f"{name(thing)} leaves the figure by {out:.1f} pt"
    texts = [(text, box) for text, box in boxes if hasattr(text, "get_text")]
    for text, _ in texts:
        size = text.get_fontsize() * SHOWN / (72 * figure.get_size_inches()[0])
        if size < SMALLEST:
            yield f"{name(text)} is shown with {size:.1f} pt"
    for (one, a), (other, b) in itertools.combinations(texts, 2):
        across, up = (min(getattr(a, f"{d}1"), getattr(b, f"{d}1")) - max(getattr(a, f"{d}0"), getattr(b, f"{d}0"))
                      for d in "xy")
        if min(across, up) / point > TOUCH:
            yield f"{name(one)} overlaps {name(other)}"


def name(thing):
    return repr(thing.get_text()) if hasattr(thing, "get_text") else "the legend"


def findings_of_run(run_dir):
    run = load(run_dir)
    for _, _, make in figures.KINDS.values():
        try:
            for sheet in make(run):
                sheet.figure.draw_without_rendering()
                for line in findings(sheet.figure):
                    yield f"{sheet.stem}: {line}"
        except Absent:
            pass


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip())
        return 2
    found = list(findings_of_run(sys.argv[1]))
    print("\n".join(found) or "figure_layout: all right")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
