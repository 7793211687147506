#!/usr/bin/env python3
"""Checkpoints of the program: trainings continue, errors are one line, and a killed run leaves a usable checkpoint."""

import os
import random
import subprocess
import time
import unittest

from process import NO_FIGURES, PROGRAM, TemporaryFolder, kill_all, read_run, shardmark

KILLS = int(os.environ.get("SHARDMARK_KILLS", "10"))
STEP = ["run", "gpt_step", "--model", "tiny", "--no-limits", "--max-seconds", "0.01"]


class Checkpoints(TemporaryFolder):
    def train(self, name, *words):
        done = shardmark(*STEP, *words, "--out", self.path(name), env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return read_run(self.path(name))["benchmarks"][0]["losses"]

    def refused(self, words, *texts):
        done = shardmark(*words, env=NO_FIGURES)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def test_trainings_continue(self):
        folder, grid = self.path("ck"), ["--tp", "2", "--dp", "1"]
        whole = self.train("whole", *grid, "--save", folder, "--save-interval", "3", "--train-iters", "7", "--async-save")
        self.assertEqual(len(whole), 7)
        shown = shardmark("checkpoint", "show", folder)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"(?m)^steps +7$")
        first = self.train("first", *grid, "--save", self.path("half"), "--train-iters", "4")
        rest = self.train("rest", *grid, "--load", self.path("half"), "--train-iters", "7")
        self.assertEqual(first + rest, whole)
        self.train("other", "--pp", "2", "--zero-stage", "3", "--load", folder)  # judged against double
        self.rejects(folder)

    def rejects(self, folder):
        load = [*STEP, "--load", folder]
        self.refused([*load, "--train-iters", "7"], "--train-iters is 7; expected more than the 7 steps")
        self.refused([*load, "--seq-length", "16"], "--seq-length is 16; expected 32, as in checkpoint")
        self.refused([*load, "--dtype", "bfloat16"], "--dtype is bfloat16; expected float")
        self.refused([*STEP, "--train-iters", "7"], "--train-iters, --save-interval and --async-save require --save DIR")
        self.refused(["run", "barrier", "--save", self.path("other")], "exactly one case", "got 0")
        self.refused([*STEP, "--load", self.path("")], "index.json: No such file")
        self.refused(["checkpoint", "shwo", folder], "'shwo'", "'show'")
        part = next(name for name in sorted(os.listdir(folder)) if "rank-1" in name)
        with open(os.path.join(folder, part), "r+b") as file:
            file.seek(-5, os.SEEK_END)
            byte = file.read(1)
            file.seek(-5, os.SEEK_END)
            file.write(bytes([byte[0] ^ 4]))
        self.refused(load, part, "is not what was written")
        self.refused(["checkpoint", "show", folder], part, "is not what was written")
        os.remove(os.path.join(folder, part))
        self.refused(load, part, "No such file")


class KilledTraining(TemporaryFolder):
    def test_the_last_complete_checkpoint_stays_usable(self):
        moments = random.Random(20261124)
        folder, found = self.path("ck"), []
        for number in range(KILLS):
            words = [*STEP, "--dp", "2", "--reference", "none", "--save", folder, "--save-interval", "1",
                     "--train-iters", "1000000", "--out", self.path(f"run{number % 2}")]
            words += ["--async-save"] if number % 2 else []
            words += ["--load", folder] if found else []
            mark = f"{os.getpid()}-{number}"
            with open(self.path("output"), "w", encoding="utf-8") as output:
                process = subprocess.Popen([PROGRAM, *words], stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                                           env={**os.environ, **NO_FIGURES, "SHARDMARK_KILLED_TRAINING": mark})
                before = self.index()
                limit = time.monotonic() + 60
                while self.index() == before and process.poll() is None and time.monotonic() < limit:
                    time.sleep(0.002)
                time.sleep(moments.uniform(0, 0.05))
                kill_all(f"SHARDMARK_KILLED_TRAINING={mark}".encode())
                process.wait(timeout=10)
            with self.subTest(number=number):
                with open(self.path("output"), encoding="utf-8") as output:
                    self.assertNotEqual(self.index(), before, output.read())
                shown = shardmark("checkpoint", "show", folder)
                self.assertEqual(shown.returncode, 0, shown.stderr)
                found.append(int(next(line for line in shown.stdout.splitlines() if line.startswith("steps ")).split()[1]))
        self.assertEqual(found, sorted(set(found)))
        self.assertEqual(len(found), KILLS)
        print(f"{KILLS} kills: the checkpoints have {found[0]} to {found[-1]} steps")

    def index(self):
        try:
            with open(os.path.join(self.path("ck"), "index.json"), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""


if __name__ == "__main__":
    unittest.main()
