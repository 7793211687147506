"""run.json and environment.json as pandas frames. results/README.md explains the fields."""
import json
import os
from dataclasses import dataclass

import pandas

from .drawing.run_json import BadRun, load, seconds

# Google Benchmark's fields of a launch. They are not columns of `cases`.
OF_GOOGLE_BENCHMARK = {"family_index", "per_family_instance_index", "repetitions", "repetition_index", "threads",
                       "real_time", "cpu_time", "samples_offset"}


@dataclass
class Run:
    """The frames of one run. A row of `cases` is one launch of a case; the others refer to it by `name`."""

    context: dict                # date, command, profile, status, rates, …
    environment: dict            # environment.json; empty if it is missing
    cases: pandas.DataFrame      # name, unit, verdict, reason, slice, seconds, axis.NAME, and every number
    oracles: pandas.DataFrame    # name, oracle, verdict, measured, expected, reference, rank, text
    memory: pandas.DataFrame     # name, category, measured, expected: peak bytes of rank 0
    breakdown: pandas.DataFrame  # name, part, seconds


def read(directory):
    """Returns the run in a folder. Raises BadRun, one line, if run.json is missing, cut off or invalid."""
    load(directory)
    with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
        document = json.load(file)
    launches = [entry for entry in document["benchmarks"] if entry.get("run_type", "iteration") == "iteration"]
    return Run(document["context"], _environment(directory), pandas.DataFrame([_case(entry) for entry in launches]),
               _frame(launches, _oracles, ["oracle", "verdict", "measured", "expected", "reference", "rank", "text"]),
               _frame(launches, _memory, ["category", "measured", "expected"]),
               _frame(launches, _breakdown, ["part", "seconds"]))


def _environment(directory):
    path = os.path.join(directory, "environment.json")
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadRun(f"{path}: {error}") from error


def _case(entry):
    row = {key: entry.get(key, "") for key in ("name", "unit", "verdict", "reason", "slice")}
    row["seconds"] = seconds(entry) if entry["verdict"] != "skipped" else float("nan")
    row |= {f"axis.{axis}": _number(value) for axis, value in entry["case"].items()}
    row |= {key: value for key, value in entry.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key not in OF_GOOGLE_BENCHMARK}
    return row


def _number(text):
    """Returns the number in a text, or the text. Axes are texts in the record, but frames sort and plot numbers."""
    try:
        return int(text)
    except ValueError:
        return text


def _oracles(entry):
    return [{"oracle": oracle, **result} for oracle, result in entry.get("oracles", {}).items()]


def _memory(entry):
    return entry.get("memory", [])


def _breakdown(entry):
    return [{"part": part["name"], "seconds": part["seconds"]} for part in entry.get("breakdown_s", [])]


def _frame(launches, rows_of, columns):
    rows = [{"name": entry["name"], **row} for entry in launches for row in rows_of(entry)]
    return pandas.DataFrame(rows, columns=["name", *columns])
