"""Draws the figures of a run into RUN_DIR/figures: .pdf, .png, .svg, and the .csv each is drawn from.

    scripts/figures.py RUN_DIR [--only KIND]             from a checkout or a bundle
    python -m shardmark.figures RUN_DIR [--only KIND]    with the package installed

figures.json next to them lists the figures with title and caption, in the order of a report. Figures
without data are left out and reported. Exit 2: run.json is not readable. For a folder with
compare.json instead: the changes between two sides; with history.json: levels over time.
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

from .drawing import bars, breakdown, bubble, levels, limits, link_matrix, memory_map, message_size, shifts, timeline, training
from .drawing.run_json import Absent, BadRun, load
from .drawing.sheet import save

HERE = os.path.dirname(os.path.abspath(__file__))
matplotlib.use("Agg")
matplotlib.style.use(os.path.join(HERE, "shardmark.mplstyle"))

# In the order of a report. The key is what --only takes.
KINDS = {
    "bus_bandwidth": ("bus bandwidth", message_size.bus_bandwidth),
    "speedup": ("speed-up over the library", message_size.speedup),
    "step_time": ("time of a step by part", bars.step_time),
    "step_breakdown": ("step by rank", breakdown.step_breakdown),
    "timeline": ("pipeline timeline", timeline.timeline),
    "bubble": ("pipeline bubble", bubble.bubble),
    "memory": ("memory by category", bars.memory),
    "memory_map": ("map of a memory", memory_map.memory_map),
    "memory_bandwidth": ("memory bandwidth", limits.memory_bandwidth),
    "matrix_rate": ("matrix rate", limits.matrix_rate),
    "link_matrix": ("links between ranks", link_matrix.link_matrix),
    "loss": ("loss of each step", training.loss),
    "scaling": ("throughput over ranks", training.scaling),
}
# For a folder with this file instead of run.json.
OF_OTHERS = {
    "compare.json": (shifts.load, {"shifts": ("what changed", shifts.shifts)}),
    "history.json": (levels.load, {"levels": ("cases over time", levels.levels)}),
}


def draw(kind, run, directory):
    """Draws one kind; returns the output and the entries of figures.json."""
    about, make = next(kinds[kind] for kinds in (KINDS, *(k for _, k in OF_OTHERS.values())) if kind in kinds)
    said, drawn = io.StringIO(), []
    with contextlib.redirect_stdout(said):
        try:
            for sheet in make(run):
                save(sheet, directory)
                drawn.append({"name": sheet.stem, "kind": kind, "title": sheet.title, "caption": sheet.caption})
        except Absent as why:
            print(f"figures: {about}: {why}")
    return said.getvalue(), drawn


def main():
    parser = argparse.ArgumentParser(prog="figures.py", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--only", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
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
        print(f"figures: --only is for runs, and {arguments.run_dir} holds {' and '.join(known)} alone", file=sys.stderr)
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
        for said, sheets in pool.map(functools.partial(draw, run=run, directory=directory), kinds, chunksize=1):
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
