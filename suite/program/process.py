"""The program as a process, for tests: $SHARDMARK_PROGRAM, and from $SHARDMARK_LAUNCHER (mpiexec) the program that
starts ranks of the MPI library that it is built on."""

import json
import os
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


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)
