"""Reads the runs of shardmark as pandas frames, and draws their figures.

    import shardmark

    run = shardmark.read("results/runs/20261123T065231Z-vm")
    run.cases[run.cases.unit == "all_reduce"][["axis.bytes", "seconds", "busbw_GBps"]]
    run.oracles[run.oracles.verdict != "pass"]
    run.environment["same_on_all_ranks"]["software"]

    python -m shardmark.figures results/runs/20261123T065231Z-vm
"""
import importlib

from .drawing.run_json import BadRun

__all__ = ["BadRun", "Run", "read"]


def __getattr__(name):
    # Only these need pandas. The figures of a report do not need it.
    if name in ("Run", "read"):
        return getattr(importlib.import_module(".runs", __name__), name)
    if name == "__version__":
        resources = importlib.import_module("importlib.resources")
        return resources.files(__name__).joinpath("VERSION").read_text(encoding="utf-8").strip()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
