#!/usr/bin/env python3
"""scripts/check_gpu on virtual GPUs: its record, a check that is stopped and goes on, and steps that fail or take too long.

    check_gpu_test.py CheckGpu | AllSteps
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import unittest

from process import PROGRAM, TemporaryFolder, shardmark

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "check_gpu")


class Checks(TemporaryFolder):
    def command(self, *words, program=PROGRAM):
        return [sys.executable, CHECK, "--program", program, "--out", self.path("record"), *words]

    def check(self, *words, program=PROGRAM, code, gpus="1"):
        done = subprocess.run(self.command(*words, program=program), capture_output=True, text=True, timeout=1500, check=False,
                              stdin=subprocess.DEVNULL, env=self.environment(gpus))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    @staticmethod
    def environment(gpus="1"):
        return {**os.environ, "SHARDMARK_VIRTUAL_GPUS": gpus, "PYTHONUNBUFFERED": "1"}

    def record(self):
        with open(self.path("record/check_gpu.json"), encoding="utf-8") as file:
            return json.load(file)

    def outcomes(self):
        return {name: step["outcome"] for name, step in self.record()["steps"].items()}


class CheckGpu(Checks):
    def broken(self, word, instead):
        """Returns a program that runs `instead` if its command line has the word."""
        program = self.path("broken")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\ncase " $* " in *" {word} "*) {instead};; esac\nexec {shlex.quote(PROGRAM)} "$@"\n')
        os.chmod(program, 0o755)
        return program

    def test_the_record_says_that_no_hardware_was_tested(self):
        text = self.check("--only", "start", "--only", "one_gpu", code=3)
        record = self.record()
        self.assertEqual(self.outcomes(), {"start": "passed", "one_gpu": "passed"})
        self.assertTrue(record["virtual"])
        self.assertEqual(len(record["gpus"]), 1)
        self.assertRegex(record["verdict"], r"^PASSED ON VIRTUAL GPUS: 2 of 8 steps; .*no hardware was tested$")
        self.assertIn(record["verdict"], text)
        for key in ("date", "host", "driver", "machine", "program"):
            self.assertIn(key, record)
        self.assertIn("CUDA", record["program"])
        with open(self.path("record/README.md"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("(virtual)", page)
        self.assertRegex(page, r"\| `armed` \| not run \| 0 \|")
        with open(self.path("record/logs/one_gpu.log"), encoding="utf-8") as file:
            self.assertRegex(file.read(), r"(?m)^\$ \S+ run gemm --ranks 1 ")

    def test_a_stopped_check_goes_on(self):
        self.check("--only", "start", code=3)
        date = self.record()["steps"]["start"]["date"]
        process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, text=True, env=self.environment(), stdin=subprocess.DEVNULL)
        self.addCleanup(process.stdout.close)
        try:
            self.assertIn("1/8 start: passed before", process.stdout.readline())
            self.assertIn("2/8 one_gpu: passed", process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=120)[0]
        finally:
            process.kill()
        self.assertEqual(process.returncode, 130, rest)
        after = self.record()["steps"]
        self.assertEqual((after["start"]["date"], after["one_gpu"]["outcome"]), (date, "passed"))
        self.assertIn("stopped", self.outcomes().values())
        # What was stopped runs again; --only runs a step that has passed again.
        self.check("--only", "start", code=1)
        self.assertEqual(self.outcomes()["one_gpu"], "passed")

    def test_a_failed_step_is_named(self):
        program = self.broken("adamw", "echo no memory; exit 1")
        text = self.check("--only", "one_gpu", program=program, code=1)
        self.assertRegex(text, r"2/8 one_gpu: failed \(\d+ s\)\n.*adamw: failed: exit code 1; expected 0: no memory")
        self.assertEqual([part["outcome"] for part in self.record()["steps"]["one_gpu"]["parts"]], ["passed", "passed", "passed", "failed"])
        self.assertRegex(self.record()["verdict"], r"^FAILED .*failed: one_gpu")
        # A record is of one program.
        text = self.check("--only", "start", code=2)
        self.assertIn("has the record of another program; use another folder", text)

    def test_a_step_that_takes_too_long_is_cut(self):
        program = self.broken("all_reduce", "sleep 100")
        text = self.check("--only", "start", "--limit", "1", program=program, code=1)
        self.assertRegex(text, r"1/8 start: cut \(1 s\)\n.*start: cut: the step's time is over")
        self.assertEqual(self.outcomes(), {"start": "cut"})

    def test_a_machine_without_gpus_is_refused(self):
        self.assertIn("no GPU", self.check(code=3, gpus="0"))
        self.assertFalse(os.path.exists(self.path("record/check_gpu.json")))

    def test_invalid_options_are_refused(self):
        self.assertIn("unknown step 'armd'; did you mean 'armed'?", self.check("--only", "armd", code=2))
        self.assertIn("expected seconds above 0", self.check("--limit", "0", code=2))
        self.assertIn("--program is /nonexistent; expected a program", self.check(program="/nonexistent", code=2))


class AllSteps(Checks):
    def test_all_steps_pass(self):
        text = self.check(code=0, gpus="2")
        self.assertRegex(text, r"PASSED ON VIRTUAL GPUS: 7 of 8 steps; lacking: sanitizer; no hardware was tested\n")


if __name__ == "__main__":
    if not re.search(r"^ *CUDA +virtual", shardmark("version").stdout, re.M):
        print("skipped: the program has no virtual GPUs")
        sys.exit(77)
    unittest.main(verbosity=2)
