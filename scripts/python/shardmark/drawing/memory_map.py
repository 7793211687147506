"""Allocations in a block of memory: addresses over events, a panel per map."""
from matplotlib.patches import Rectangle

from .bars import UNIT_OF_BYTES, label_of, unit_for
from .run_json import Absent
from .sheet import Sheet, file_name, fill_style, legend_above, new_figure, size_text

ORDER = ["parameters", "gradients", "optimizer", "activations", "buffers"]  # as in the figures of memory by category
FAILED = "#D50000"


def _draw(axis, memory_map, scale, drawn):
    for block in memory_map["blocks"]:
        style = fill_style(ORDER.index(block["category"]) if block["category"] in ORDER else len(ORDER))
        patch = Rectangle((block["begin"], block["address"] / scale), block["end"] - block["begin"],
                          block["bytes"] / scale, **{**style, "linewidth": 0.15})
        axis.add_patch(patch)
        drawn.setdefault(block["category"], patch)


def _head(axis, memory_map):
    """Draws the title above a panel, and the failed allocation."""
    axis.set_title(memory_map["name"], loc="left", fontsize=7, pad=2.5)
    failed = memory_map.get("failed")
    if not failed:
        return
    axis.axvline(memory_map["events"], color=FAILED, linewidth=1.2, clip_on=False)
    axis.set_title(f"{size_text(failed['asked'])} requested, {size_text(failed['free'])} free, longest hole "
                   f"{size_text(failed['longest'])}", loc="right", fontsize=6, pad=2.5, color=FAILED)


def _caption(maps):
    texts = []
    for one in maps:
        failed = one.get("failed")
        texts.append(f"{one['name']}: " + (
            f"fails at the red line: it requests {failed['asked']:,} bytes, {failed['free']:,} are free, and the longest "
            f"hole has {failed['longest']:,}" if failed else "completes"))
    return ("Every allocation from its begin (left edge) to its release (right edge), at its address. White is "
            "free. " + "; ".join(texts) + ".")


def memory_map(run):
    cases = run.with_key("memory_maps")
    if not cases:
        raise Absent("no case carries a memory map")
    for case in cases:
        label = label_of(case, cases)
        maps = case.first("memory_maps")
        scale, byte_unit = unit_for(max(one["bytes"] for one in maps), UNIT_OF_BYTES)
        events = max(one["events"] for one in maps)
        figure, axes = new_figure(0.35 + 1.45 * len(maps), rows=len(maps), sharex=True, squeeze=False)
        drawn = {}
        for axis, one in zip(axes[:, 0], maps):
            _draw(axis, one, scale, drawn)
            _head(axis, one)
            axis.set_xlim(0, events)
            axis.set_ylim(0, one["bytes"] / scale)
            axis.set_ylabel(f"address [{byte_unit}]")
            axis.grid(visible=False)
        axes[-1, 0].set_xlabel("allocations and releases")
        names = [name for name in ORDER if name in drawn] + [name for name in drawn if name not in ORDER]
        handles = [axes[0, 0].bar(0, 0, **fill_style(ORDER.index(n) if n in ORDER else len(ORDER))) for n in names]
        legend_above(axes[0, 0], handles=handles, labels=names)
        title = f"{case.unit.replace('_', '-')}, {label}"
        yield Sheet(file_name("memory_map", case.unit, label), f"Map of the memory: {title}", _caption(maps), figure,
                    ["unit", "case", "map", "category", "address", "bytes", "begin", "end"],
                    [[case.unit, label, one["name"], b["category"], b["address"], b["bytes"], b["begin"], b["end"]]
                     for one in maps for b in one["blocks"]])
