"""run.json as the figures read it: cases with their launches, and the limits of the machine."""
import json
import os
from collections import Counter
from statistics import median

# Axes that have a name of their own in the field's figures.
SHORT = {"tensor-model-parallel-size": "TP", "pipeline-model-parallel-size": "PP", "data-parallel-size": "DP",
         "context-parallel-size": "CP", "expert-model-parallel-size": "EP", "expert-tensor-parallel-size": "ETP",
         "zero-stage": "ZeRO", "micro-batch-size": "micro-batch", "global-batch-size": "global batch"}
UNITS_OF_TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
SCHEMA = "shardmark-run/"


class BadRun(Exception):
    """run.json is missing, cut off or invalid; one line."""


class Absent(Exception):
    """The data of a figure that this run lacks."""


def load_document(path, schema, what):
    """Returns a JSON document of this program with this schema."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if document["schema"] != schema:
            raise BadRun(f"{path}: schema {document['schema']!r}, not {schema!r}")
        return document
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRun(f"{path}: not {what}: {error}") from error


class Case:
    """One case: the common fields of its launches (Google Benchmark's repetitions), and their numbers."""

    def __init__(self, entry):
        self.unit = entry["unit"]
        self.axes = {SHORT.get(k, str(k)): str(v) for k, v in entry["case"].items()}
        self.launches = []

    def add(self, entry):
        self.launches.append(entry)

    @property
    def verdict(self):
        verdicts = [entry["verdict"] for entry in self.launches]
        return next((v for v in ("fail", "skipped") if v in verdicts), "pass")

    @property
    def ranks(self):
        return int(self.axes.get("ranks", 1))

    def timed(self):
        """Returns the launches that were measured. A skipped launch has no time."""
        return [e for e in self.launches if e["verdict"] != "skipped" and seconds(e) > 0]

    def number(self, key):
        """Returns the median over launches of a counter, or None."""
        values = [e[key] for e in self.timed() if isinstance(e.get(key), (int, float))]
        return median(values) if values else None

    def seconds(self):
        return median(seconds(e) for e in self.timed())

    def interval(self):
        """Returns low and high of the time: one launch's confidence interval, or the range over launches."""
        times = [seconds(e) for e in self.timed()]
        if len(times) > 1:
            return min(times), max(times)
        only = self.timed()[0]
        return only.get("ci_low_s", times[0]), only.get("ci_high_s", times[0])

    def first(self, key):
        """Returns a list that a launch carries (memory, timeline, …), or None."""
        return next((e[key] for e in self.launches if e.get(key)), None)


def seconds(entry):
    return float(entry["real_time"]) * UNITS_OF_TIME[entry["time_unit"]]


class Run:
    def __init__(self, context, cases, directory=""):
        self.only = False  # one kind was requested: draw all its figures
        self.directory = directory
        self.context = context
        self.cases = cases
        self.rates = rates(context.get("rates") or {})

    def with_key(self, key):
        return [c for c in self.cases if c.timed() and (c.number(key) is not None or c.first(key))]


def varied(cases, most):
    """Returns at most `most` cases: one of every unit and schedule, then a second, and so on."""
    seen, rounds = Counter(), []
    for case in cases:
        key = (case.unit, case.axes.get("schedule"), case.axes.get("virtual_stages"))
        rounds.append((seen[key], case))
        seen[key] += 1
    kept = {id(case) for _, case in sorted(rounds, key=lambda item: item[0])[:most]}
    return [case for case in cases if id(case) in kept]


def rates(named):
    """[(name, {axis: value}, number)] from "copy_GBps/ranks:2/bytes:1048576"."""
    rows = []
    for key, value in named.items():
        name, *axes = key.split("/")
        rows.append((name, dict(axis.partition(":")[::2] for axis in axes), float(value)))
    return rows


def load(directory):
    path = os.path.join(directory, "run.json")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise BadRun(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRun(f"{path}: not text: {error}") from error
    try:
        document = json.loads(text)
    except ValueError as error:
        end = "; is it cut off?" if text.strip()[-1:] != "}" else ""
        raise BadRun(f"{path}: not JSON: {error}{end}") from error
    try:
        context = document["context"]
        schema = context["schema"]
        if not schema.startswith(SCHEMA):
            raise BadRun(f'{path}: schema "{schema}", not one of {SCHEMA}*')
        cases = {}
        for number, entry in enumerate(document["benchmarks"]):
            if entry.get("run_type", "iteration") != "iteration":
                continue
            try:
                case = Case(entry)
                key = (case.unit, tuple(case.axes.items()))
                if entry["verdict"] != "skipped":
                    seconds(entry)
                cases.setdefault(key, case).add(entry)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                name = entry.get("name", "?") if isinstance(entry, dict) else "?"
                raise BadRun(f"{path}: benchmarks[{number}] ({name}): bad or missing {error}") from error
        return Run(context, list(cases.values()), directory)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRun(f"{path}: not a run of this program: bad or missing {error}") from error
