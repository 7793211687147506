"""Rates of every ordered pair of ranks, as a heat map."""
from collections import defaultdict

from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from .run_json import Absent
from .sheet import Sheet, file_name, new_figure, size_text

FEW = 8           # ranks up to which there is room for three digits
MOST_VALUES = 16  # ranks up to which a cell holds its value
MOST_CELLS = 32   # ranks up to which cells are drawn one by one, not as pixels
SLOW = "#D50000"
METRICS = {"bandwidth": ("bandwidth_GBps", "bandwidth [GB/s]", "viridis"),
           "latency": ("latency_us", "latency [µs]", "viridis_r")}  # dark is slow, in both


def short_host(name, longest=10):
    """A host's name without its domain, shortened in the middle."""
    name = name.partition(".")[0]
    return name if len(name) <= longest else f"{name[:4]}…{name[-(longest - 5):]}"


def value_text(value, digits):
    """0.34, 12.3, 123 with three digits; 0.3, 12, 123 with two."""
    before = len(f"{value:.0f}")
    return f"{value:.{max(0, digits - before)}f}"


def _pair_text(matrix, pair):
    hosts, unit = matrix["hosts"], "GB/s" if pair["metric"] == "bandwidth" else "µs"
    return (f"{pair['from']} ({hosts[pair['from']]}) to {pair['to']} ({hosts[pair['to']]}), {pair['metric']} "
            f"{pair['value']:.3g} of {pair['typical']:.3g} {unit}")


def _caption(matrix):
    slow = matrix["slow_pairs"]
    text = ("From each rank (row) to each other rank (column). Dark is slow. The colours run from zero to the largest "
            "value of the cases that differ only in mode.")
    crowded = matrix["crowded_hosts"]
    if crowded:
        text += f" On {', '.join(crowded)} ranks wait for their cores, so pairs there have the rate of the fastest pass."
    if not slow:
        return text + ("" if crowded else " No pair stands out.")
    more = f"; and {len(slow) - 3} more" if len(slow) > 3 else ""
    return (text + " Red frames: pairs that take more time than similar pairs, by median and MAD: "
            + "; ".join(_pair_text(matrix, pair) for pair in slow[:3]) + more + ".")


def _cell(axis, row, column, value, norm, cmap, few):
    red, green, blue, _ = cmap(norm(value))
    light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    axis.text(column, row, value_text(value, 3 if few else 2), ha="center", va="center_baseline",
              fontsize=6 if few else 4, color="black" if light else "white")


def _panel(axis, matrix, metric, largest):
    key, label, colours = METRICS[metric]
    values = matrix[key]
    ranks = len(values)
    norm = Normalize(0, largest)
    # The diagonal is not a pair.
    cells = [[float("nan") if a == b else values[a][b] for b in range(ranks)] for a in range(ranks)]
    mesh = axis.pcolormesh(range(ranks), range(ranks), cells, cmap=colours, norm=norm, shading="nearest",
                           edgecolors="white" if ranks <= MOST_CELLS else "none", linewidth=0.4,
                           rasterized=ranks > MOST_CELLS)
    if ranks <= MOST_VALUES:
        for row in range(ranks):
            for column in range(ranks):
                if row != column:
                    _cell(axis, row, column, values[row][column], norm, mesh.cmap, ranks <= FEW)
    for pair in matrix["slow_pairs"]:
        if pair["metric"] == metric:
            axis.add_patch(Rectangle((pair["to"] - 0.45, pair["from"] - 0.45), 0.9, 0.9, fill=False, edgecolor=SLOW,
                                     linewidth=1.2, zorder=3))
    shown = range(0, ranks, -(-ranks // MOST_CELLS))
    names = [f"{rank} ({short_host(matrix['hosts'][rank])})" for rank in shown]
    size = 7 if ranks <= FEW else 5 if ranks <= MOST_VALUES else 4.5
    axis.set_yticks(shown, names, fontsize=size)
    axis.set_xticks(shown, names, fontsize=size, rotation=90)
    axis.set_ylim(ranks - 0.5, -0.5)
    axis.set_xlim(-0.5, ranks - 0.5)
    axis.grid(visible=False)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_ylabel("from rank (host)")
    axis.figure.colorbar(mesh, ax=axis, label=label, pad=0.03, fraction=0.05).outline.set_visible(False)


def _subject(case):
    words = [case.axes.get("transport", ""), case.axes.get("mode", ""), f"{case.ranks} ranks",
             size_text(int(case.axes["bytes"])) if case.axes.get("bytes", "").isdigit() else ""]
    return [word for word in words if word]


def link_matrix(run):
    """Yields the matrix with the most ranks for each transport and size."""
    groups = defaultdict(list)
    for case in run.with_key("link_matrix"):
        groups[tuple(v for k, v in case.axes.items() if k not in ("mode", "ranks"))].append(case)
    if not groups:
        raise Absent("no case carries a link matrix")
    for members in groups.values():
        most = max(case.ranks for case in members)
        members = [case for case in members if case.ranks == most]
        largest = {metric: max(max(map(max, case.first("link_matrix")[key])) for case in members)
                   for metric, (key, *_) in METRICS.items()}
        for case in members:
            matrix = case.first("link_matrix")
            figure, axes = new_figure(0.9 + 2 * min(2.0, max(0.8, 0.33 * most)), rows=2, sharex=True)
            for axis, metric in zip(axes, METRICS):
                _panel(axis, matrix, metric, largest[metric])
            axes[1].set_xlabel("to rank (host)")
            subject = _subject(case)
            hosts, slow = matrix["hosts"], defaultdict(list)
            for pair in matrix["slow_pairs"]:
                slow[pair["from"], pair["to"]].append(pair["metric"])
            yield Sheet(
                file_name("link_matrix", *subject),
                f"Links between ranks: {', '.join(word.replace('_', ' ') for word in subject)}", _caption(matrix),
                figure, ["from", "to", "from_host", "to_host", "bandwidth_GBps", "latency_us", "slow", "verdict"],
                [[a, b, hosts[a], hosts[b], matrix["bandwidth_GBps"][a][b], matrix["latency_us"][a][b],
                  " ".join(slow[a, b]), case.verdict] for a in range(most) for b in range(most) if a != b])
