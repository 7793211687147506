"""Draws the figures of a run into RUN_DIR/figures: an .svg, and the .csv that it is drawn from.

    scripts/figures.py RUN_DIR [--only KIND] [--format pdf]             from a checkout or a bundle
    python -m shardmark.figures RUN_DIR [--only KIND] [--format pdf]    with the package installed

figures.json next to them lists the figures in the order of a report. Figures without data are left
out and reported. Exit 2: run.json is not readable. For a folder with compare.json instead: the
changes between two sides; with history.json: levels over time; with predict.json: scaling.
"""
import argparse
import contextlib
import datetime
import functools
import io
import json
import multiprocessing
import os
import sys

import matplotlib.style

from .drawing import (
    bars,
    breakdown,
    bubble,
    contexts,
    levels,
    limits,
    link_matrix,
    memory_map,
    message_size,
    prediction,
    shifts,
    strategies,
    tensor_grids,
    timeline,
    training,
)
from .drawing.run_json import Absent, BadRun, load
from .drawing.sheet import FORMATS, save

HERE = os.path.dirname(os.path.abspath(__file__))
matplotlib.use("Agg")
matplotlib.style.use(os.path.join(HERE, "shardmark.mplstyle"))

# In the order of a report, which folds each group. The keys are the values of --only.
KINDS = {
    "memory_bandwidth": ("memory bandwidth", "Machine", limits.memory_bandwidth),
    "matrix_rate": ("matrix rate", "Machine", limits.matrix_rate),
    "link_matrix": ("links between ranks", "Machine", link_matrix.link_matrix),
    "bus_bandwidth": ("bus bandwidth", "Collectives", message_size.bus_bandwidth),
    "speedup": ("speed-up over the library", "Collectives", message_size.speedup),
    "timeline": ("pipeline timeline", "Pipeline", timeline.timeline),
    "bubble": ("pipeline bubble", "Pipeline", bubble.bubble),
    "memory": ("memory by category", "Memory", bars.memory),
    "memory_map": ("map of a memory", "Memory", memory_map.memory_map),
    "step_time": ("time of a step by part", "Layers and training steps", bars.step_time),
    "step_breakdown": ("step by rank", "Layers and training steps", breakdown.step_breakdown),
    "loss": ("loss of each step", "Layers and training steps", training.loss),
    "mfu": ("model FLOPs utilization", "Layers and training steps", training.mfu),
    "strategies": ("one model by several strategies", "Layers and training steps", strategies.strategies),
    "scaling": ("throughput over ranks", "Layers and training steps", training.scaling),
    "contexts": ("attention over ranks", "Layers and training steps", contexts.contexts),
    "tensor_grids": ("tensor parallelism in 1 to 3 dimensions", "Layers and training steps", tensor_grids.tensor_grids),
}
# For a folder with this file instead of run.json.
OF_OTHERS = {
    "compare.json": (shifts.load, {"shifts": ("what changed", "Comparison", shifts.shifts)}),
    "predict.json": (prediction.load, {"prediction": ("what is predicted", "Prediction", prediction.prediction)}),
    "history.json": (levels.load, {"levels": ("cases over time", "History", levels.levels)}),
}
POINTS = 72  # per inch


def draw(kind, run, directory, formats):
    """Draws one kind; returns the output and the entries of figures.json."""
    about, group, make = next(kinds[kind] for kinds in (KINDS, *(k for _, k in OF_OTHERS.values())) if kind in kinds)
    said, drawn = io.StringIO(), []
    with contextlib.redirect_stdout(said):
        try:
            for sheet in make(run):
                save(sheet, directory, formats)
                width, height = (round(POINTS * inches, 1) for inches in sheet.figure.get_size_inches())
                drawn.append({"name": sheet.stem, "kind": kind, "about": about[0].upper() + about[1:], "group": group,
                              "title": sheet.title, "caption": sheet.caption, "width": width, "height": height})
        except Absent as why:
            print(f"figures: {about}: {why}")
    return said.getvalue(), drawn


def main():
    parser = argparse.ArgumentParser(prog="figures.py", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--only", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("--format", metavar="FORMAT", action="append", choices=FORMATS, default=[],
                        help=f"in addition to svg: {', '.join(FORMATS)}; may be repeated")
    arguments = parser.parse_args()
    read, known = next((other for file, other in OF_OTHERS.items()
                        if os.path.exists(os.path.join(arguments.run_dir, file))), (load, KINDS))
    try:
        run = read(arguments.run_dir)
    except BadRun as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    if known is KINDS:
        run.only = arguments.only is not None
    elif arguments.only:
        print(f"figures: --only requires a run; {arguments.run_dir} has only {' and '.join(known)}", file=sys.stderr)
        return 2
    directory = os.path.join(arguments.run_dir, "figures")
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        print(f"figures: {directory}: {error.strerror}", file=sys.stderr)
        return 3
    # The date inside the files is the run's, so that drawing twice gives the same bytes.
    try:
        text = run.context["date"] if known is KINDS else run["date"]
        date = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        os.environ.setdefault("SOURCE_DATE_EPOCH", str(int(date.timestamp())))
    except (KeyError, ValueError, AttributeError):
        os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    kinds = [arguments.only] if arguments.only else list(known)
    drawn = []
    with multiprocessing.Pool(min(4, len(kinds), len(os.sched_getaffinity(0)))) as pool:
        for said, sheets in pool.map(functools.partial(draw, run=run, directory=directory, formats=arguments.format), kinds, chunksize=1):
            print(said, end="")
            drawn += sheets
    if not arguments.only:
        listing = os.path.join(directory, "figures.json")
        with open(f"{listing}.part", "w", encoding="utf-8") as file:
            json.dump(drawn, file, indent=1)
        os.replace(f"{listing}.part", listing)
    print(f"figures: {len(drawn)} in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
