"""The program as a process, for tests: $SHARDMARK_PROGRAM, and from $SHARDMARK_LAUNCHER (mpiexec) the program that
starts ranks of the MPI library that it is built on."""

import functools
import json
import os
import re
import signal
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["SHARDMARK_PROGRAM"]
LAUNCHER = os.environ.get("SHARDMARK_LAUNCHER", "mpiexec").split()
NO_FIGURES = {"SHARDMARK_FIGURES": "/nonexistent"}


def shardmark(*words, env=None, timeout=120):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def read_run(directory):
    with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
        return json.load(file)


def kill_all(mark):
    """Kills every process whose environment has the mark (b"NAME=VALUE"), whatever its parent is."""
    while True:
        alive = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        alive.append(int(pid))
            except OSError:
                continue
        if not alive:
            return
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


# The values of varied axes whose default is not neutral. A change of these defaults does not change the cases of tests.
PLAIN = {"--dtype": "float", "--transport": "shared_memory", "--optimizer": "adamw", "--schedule": "1f1b", "--model": "tiny",
         "--cp-comm-type": "p2p", "--cp-placement": "zigzag", "--fp8-recipe": "delayed",
         "--ds-sequence-parallel-fpdt-chunk-size": "65536", "--number-checkpoints": "0",
         "--tensor-parallel-mode": "1d", "--tensor-parallel-product": "summa", "--expert-tensor-parallel-size": "tp"}
NEUTRAL = {"off", "none", "default", "model", "schedule", "1"}


@functools.cache
def varied_axes(unit):
    """Returns the flags and the default of each axis that slices of the profiles quick and smoke vary."""
    listed = shardmark("list", unit, "--profile", "quick", "--profile", "smoke").stdout
    axes = []
    for flags, rows in re.findall(r"^  (--.*)\n((?:      .*\n)+)", listed, re.MULTILINE):
        values = dict(re.findall(r"^      (\S.*?)  +(.*)$", rows, re.MULTILINE))
        default = values.pop("default")
        if any(values[profiles] != default for profiles in values.keys() - {"allowed", "meaning"}):
            axes.append((flags.split(", "), default))
    return axes


def one_case(unit, words, axes=varied_axes):
    """Returns the words of a command line and a value of each varied axis that they do not set: PLAIN's, or the default if that
    is neutral. A profile then has one case, which another axis does not change."""
    given, more = {word.partition("=")[0] for word in words}, []
    for flags, default in axes(unit):
        if not given.intersection(flags):
            assert default in NEUTRAL or flags[-1] in PLAIN, f"{flags[-1]} is {default} by default: add the value that tests mean to PLAIN"
            more += [flags[-1], PLAIN.get(flags[-1], default)]
    return [*words, *more]


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)
