"""A figure and its table, and functions that write them as .svg, .csv, and other formats on request."""
import csv
import hashlib
import io
import os
import re
import textwrap
from dataclasses import dataclass, field

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

WIDTH = 3.4  # inches, one column
LINE = 56  # characters of a legend's title that fit into it

# Okabe and Ito's colours that are legible on white, with markers and dashes that are distinct in grey.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F4F24", "#5E3C99"]
# One more than the colours, so that 72 lines differ in colour or marker.
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "<"]
DASHES = ["-", (0, (5, 1.2)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (4, 1, 1, 1, 1, 1))]
# Only straight lines: dots and circles make an SVG ten times as large.
HATCHES = ["", "////", "\\\\\\\\", "", "----", "xxxx", "||||", "++++"]
LIMIT = {"color": "#000000", "linestyle": (0, (1, 1.6)), "linewidth": 0.9}
LIBRARY = {"color": "#555555", "marker": "x", "linestyle": (0, (2, 1))}


CREATOR = {"Creator": "Shardmark"}
FORMATS = {"pdf": (FigureCanvasPdf, CREATOR), "png": (FigureCanvasAgg, {"Software": "Shardmark"})}
SVG = {"svg": (FigureCanvasSVG, {**CREATOR, "Date": None})}


@dataclass
class Sheet:
    stem: str     # file name without extension
    title: str    # the subject
    caption: str  # the explanation
    figure: Figure
    columns: list
    rows: list = field(default_factory=list)


def new_figure(height, rows=1, columns=1, **kwargs):
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots(rows, columns, **kwargs)


def line_style(index, dash=None):
    dash = index if dash is None else dash
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)],
            "linestyle": DASHES[dash % len(DASHES)]}


def fill_style(index):
    """A face that is distinct by colour and, in grey, by its hatch."""
    return {"facecolor": COLOURS[index % len(COLOURS)], "hatch": HATCHES[index % len(HATCHES)],
            "edgecolor": "white", "linewidth": 0.4}


# The parts of a training step: distinct in grey by lightness and hatch.
PARTS = {
    "data": ("#FFFFFF", "++++", "#666666"),
    "graph": ("#44AA99", "....", "white"),
    "forward": ("#A9D8F5", "", "white"),
    "recompute": ("#A9D8F5", "\\\\\\\\", "#0072B2"),
    "backward input": ("#D55E00", "", "white"),
    "backward weights": ("#00664B", "", "white"),
    "communication tp": ("#E69F00", "////", "black"),
    "communication pp": ("#F0E442", "----", "black"),
    "communication dp": ("#CC79A7", "\\\\\\\\", "black"),
    "communication embedding": ("#5E3C99", "xxxx", "white"),
    "bubble": ("#FFFFFF", "//////", "#9A9A9A"),
    "optimizer": ("#7F4F24", "", "white"),
    "offload": ("#56B4E9", "||||", "black"),
    "other": ("#BBBBBB", "", "white"),
}


def part_style(name, index):
    """Returns the style of a part of a step, the same in all figures; fill_style for unknown parts."""
    if name not in PARTS:
        return fill_style(index)
    colour, hatch, edge = PARTS[name]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": edge, "linewidth": 0.4}


LONGEST_NAME = 160  # A file system allows 255 bytes, including .svg.part.


def file_name(*parts):
    """Returns the parts as a name; of a long one the beginning, and a digest of the whole."""
    name = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", str(part)) for part in parts if part)
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[:LONGEST_NAME - 9]}-{digest}"


def size_text(size):
    """1048576 -> "1 MiB"."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:g} B"


def decimal_text(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def label_bars(axis, labels):
    """A row per label, from the top; bars start at zero."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.set_xlim(0)
    # A fixed number: with fewer ticks on a narrow axis, the layout would change after it was computed.
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axis.grid(axis="y", visible=False)


def byte_axis(axis, sizes, most=6):
    """Sets a log2 axis with ticks on some of the measured sizes."""
    sizes = sorted(set(sizes))
    axis.set_xscale("log", base=2)
    # From the largest; sizes may be unevenly spaced.
    apart = (sizes[-1] / sizes[0]) ** (1 / most)
    ticks = []
    for size in reversed(sizes):
        if not ticks or ticks[-1] >= 0.999 * apart * size:
            ticks.append(size)
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(FixedLocator(sizes))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size_text(round(x))))
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: ""))
    if len(sizes) == 1:
        axis.set_xlim(sizes[0] / 2, sizes[0] * 2)


def plain_log(axis, base):
    """A log y axis that is labelled with plain numbers."""
    axis.set_yscale("log", base=base)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.12g}"))
    low, high = axis.get_ylim()
    # Within two decades, log ticks are too few to read a value from.
    if base == 10 and high / low < 100:
        ticks = [m * 10.0**e for e in range(-12, 13) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        axis.yaxis.set_major_locator(FixedLocator(ticks))
    axis.yaxis.set_minor_locator(NullLocator())


def legend_above(axis, title=None, handles=None, labels=None):
    """A legend over the whole width, in as many columns as fit; the figure grows by its height."""
    if handles is None:
        handles, labels = axis.get_legend_handles_labels()
    if not handles:
        return
    figure = axis.figure
    title = textwrap.fill(title, LINE) if title else None
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(min(4, len(handles)), 0, -1):
        for old in figure.legends[:]:
            old.remove()
        legend = figure.legend(handles, labels, loc="upper center", ncol=columns, title=title, markerscale=0.7)
        box = legend.get_window_extent(renderer)
        if box.width <= figure.bbox.width:
            break
    width, height = figure.get_size_inches()
    taken = box.height / figure.dpi + 0.03
    figure.set_size_inches(width, height + taken)
    figure.get_layout_engine().set(rect=(0, 0, 1, height / (height + taken)))


def _with_unique_ids(svg, prefix):
    """Makes ids unique, so that a page may contain several figures."""
    names = set(re.findall(r'\bid="([^"]+)"', svg))

    def renamed(match):
        before, name, after = match.groups()
        return f"{before}{prefix}.{name}{after}" if name in names else match.group(0)

    svg = re.sub(r'(\bid=")([^"]+)(")', renamed, svg)
    svg = re.sub(r'(href="#)([^"]+)(")', renamed, svg)
    return re.sub(r"(url\(#)([^)]+)(\))", renamed, svg)


def _place(path, data):
    """Replaces a file by renaming, so that no reader sees a partial file."""
    beside = f"{path}.part"
    with open(beside, "wb") as file:
        file.write(data)
    os.replace(beside, path)


def save(sheet, directory, formats=()):
    """formats: of FORMATS, in addition to .svg and .csv."""
    matplotlib.rcParams["svg.hashsalt"] = sheet.stem
    # Compute the layout once, not for each format. Each format then draws once; print_figure would draw twice.
    sheet.figure.get_layout_engine().execute(sheet.figure)
    sheet.figure.set_layout_engine("none")
    for suffix, (canvas, metadata) in (SVG | {name: FORMATS[name] for name in formats}).items():
        out = io.BytesIO()
        sheet.figure.dpi = matplotlib.rcParams["savefig.dpi"]
        getattr(canvas(sheet.figure), f"print_{suffix}")(out, metadata={"Title": sheet.title, **metadata})
        data = out.getvalue()
        if suffix == "svg":
            data = _with_unique_ids(data.decode(), sheet.stem).encode()
        _place(os.path.join(directory, f"{sheet.stem}.{suffix}"), data)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(sheet.columns)
    writer.writerows([f"{x:.9g}" if isinstance(x, float) else x for x in row] for row in sheet.rows)
    _place(os.path.join(directory, f"{sheet.stem}.csv"), table.getvalue().encode())
