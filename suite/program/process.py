"""The program as a process, for tests: $SHARDMARK_PROGRAM, and from $SHARDMARK_LAUNCHER (mpiexec) the program that
starts ranks of the MPI library that it is built on."""

import json
import os
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


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)
