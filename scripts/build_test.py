#!/usr/bin/env python3
"""scripts/build shows on a terminal how far it is, prints a line for each phase into a pipe, and shows what failed."""

import os
import pty
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PRESETS = '{"buildPresets": [{"name": "release", "configurePreset": "release"}], "testPresets": []}'


class Build(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        os.mkdir(self.path("scripts"))
        os.mkdir(self.path("bin"))
        shutil.copy(os.path.join(HERE, "build"), self.path("scripts"))
        self.write("CMakePresets.json", PRESETS)

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def command(self, build):
        """Returns the command and the environment with a cmake whose --build is the shell's `build`."""
        self.write("bin/cmake", f'#!/bin/sh\ncase "$1" in --build) {build};; esac\n')
        os.chmod(self.path("bin/cmake"), 0o755)
        return [self.path("scripts/build"), "release"], {**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"]}

    def on_a_terminal(self, build):
        command, environment = self.command(build)
        mine, theirs = pty.openpty()
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment) as process:
            os.close(theirs)
            text = b""
            try:
                while part := os.read(mine, 4096):
                    text += part
            except OSError:  # the other end is closed
                pass
        os.close(mine)
        return process.returncode, text.decode()

    def test_a_terminal_shows_how_far_it_is(self):
        code, text = self.on_a_terminal('echo "[3/7] Building"; sleep 4; echo "[7/7] Linking"; sleep 4')
        self.assertEqual(code, 0)
        self.assertRegex(text, r"build: release: \[3/7\] after \d+ s\r")
        self.assertIn("build: release: [7/7] after", text)
        self.assertRegex(text, r"\r\x1b\[Kbuild: release: build with \d+ jobs? \d+ s\r\n$")

    def test_a_pipe_gets_a_line_for_each_phase(self):
        command, environment = self.command('echo "[3/7] Building"; sleep 2')
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=20)
        self.assertRegex(done.stdout, r"^build: release: configure \d+ s\nbuild: release: build with \d+ jobs? \d+ s\n$")
        self.assertEqual(done.stderr, "")

    def test_a_failure_shows_the_end_of_the_log(self):
        command, environment = self.command('echo "[3/7] Building"; echo "FAILED: x.o"; echo "x.cpp:1: error"; exit 1')
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=20)
        self.assertEqual(done.returncode, 3)
        self.assertIn("x.cpp:1: error", done.stderr)
        self.assertRegex(done.stderr, r"build: release: build with \d+ jobs? failed after \d+ s; log: ")


if __name__ == "__main__":
    unittest.main()
