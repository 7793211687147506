#!/usr/bin/env python3
"""Runs that are disturbed: lost ranks, signals, a launcher that does not end.

Takes the built program from $SHARDMARK_PROGRAM. It mostly waits for timeouts.
"""

import os
import random
import signal
import subprocess
import sys
import time
import unittest

from process import PROGRAM, TemporaryFolder, read_run

TIMEOUT_S = 10  # of the run; a busy machine may stall for seconds
RANK_VARIABLES = (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK")


class DisturbedRun(TemporaryFolder):
    """A run of three ranks that is disturbed after its first case."""

    def start(self, wait=True, words=()):
        self.runs = getattr(self, "runs", 0) + 1
        self.out = self.path(f"run{self.runs}")
        self.process = subprocess.Popen(
            [PROGRAM, "run", "all_reduce", "--ranks", "3", "--timeout", str(TIMEOUT_S), "--max-seconds", "0.5", "--bytes", "8:1MiB:x4",
             "--transport", "shared_memory", *words, "--out", self.out],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(self.process.kill)
        for _ in range(600 if wait else 0):
            time.sleep(0.1)
            try:
                if read_run(self.out)["benchmarks"]:
                    break
            except (OSError, ValueError):
                pass
        if wait:
            time.sleep(random.random())

    def processes(self):
        """Returns rank -> pid of the processes that compute (their supervisors have one thread)."""
        ranks = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if self.out.encode() not in file.read():
                        continue
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environment = dict(word.split(b"=", 1) for word in file.read().split(b"\0") if b"=" in word)
                rank = [environment[name] for name in RANK_VARIABLES if name in environment]
                if rank and len(os.listdir(f"/proc/{pid}/task")) > 1:
                    ranks[int(rank[0])] = int(pid)
            except OSError:
                continue
        return ranks

    def lose(self, rank, how, word):
        self.start()
        before = len(read_run(self.out)["benchmarks"])
        pid = self.processes()[rank]
        begin = time.monotonic()
        os.kill(pid, how)
        _, errors = self.process.communicate(timeout=60)
        took = time.monotonic() - begin
        self.assertEqual(self.process.returncode, 4, errors)
        self.assertLess(took, TIMEOUT_S + 10, "within the timeout, the report and a busy machine's slack")
        self.assertRegex(errors, rf"rank {rank} \(pid {pid} on .*{word}")
        run = read_run(self.out)
        self.assertEqual(run["context"]["status"], "aborted")
        self.assertIn(f"rank {rank}", run["context"]["status_reason"])
        self.assertGreaterEqual(len(run["benchmarks"]), before + 1)
        self.assertTrue(all(case["verdict"] == "pass" for case in run["benchmarks"][:before]))
        self.assertEqual(run["benchmarks"][-1]["verdict"], "fail")
        time.sleep(0.5)
        self.assertEqual(self.processes(), {}, "no rank may stay behind")

    def test_a_killed_rank_is_named(self):
        for rank in (0, 2):
            with self.subTest(rank=rank):
                self.lose(rank, signal.SIGKILL, "died")

    def test_a_stopped_rank_is_named(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                self.lose(rank, signal.SIGSTOP, "stopped")

    def test_a_rank_lost_at_the_start_ends_the_launch(self):
        self.start(wait=False)
        ranks = {}
        while 1 not in ranks and self.process.poll() is None:
            ranks = self.processes()
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = self.process.communicate(timeout=60)
        self.assertEqual(self.process.returncode, 4, errors)
        time.sleep(0.5)
        self.assertEqual(self.processes(), {}, "no rank may stay behind")

    def test_signals_keep_finished_cases(self):
        for how, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(signal=how):
                self.start()
                self.process.send_signal(how)
                output, errors = self.process.communicate(timeout=60)
                self.assertEqual(self.process.returncode, code, output + errors)
                run = read_run(self.out)
                self.assertEqual(run["context"]["status"], "interrupted")
                self.assertTrue(run["benchmarks"])

    def test_a_killed_run_is_resumed(self):
        self.start(words=["--algorithm", "ring,direct", "--dtype", "float"])
        ranks = self.processes()
        for pid in (self.process.pid, *ranks.values()):
            os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=60)
        for _ in range(100):
            if not self.processes():
                break
            time.sleep(0.1)
        before = read_run(self.out)["benchmarks"]
        # A partial write, as a killed process may leave it.
        with open(os.path.join(self.out, "samples.bin"), "ab") as file:
            file.write(b"torn")
        words = read_run(self.out)["context"]["words"]
        done = subprocess.run([PROGRAM, "run", "--resume", self.out], capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        whole = [PROGRAM, *words[:words.index("--out")], "--benchmark_list_tests", "--out", self.path("list")]
        names = subprocess.run(whole, capture_output=True, text=True, timeout=60, check=True).stdout.split()
        run = read_run(self.out)
        self.assertLess(len(before), len(names))
        self.assertEqual([case["name"] for case in run["benchmarks"]], names)
        self.assertEqual(run["benchmarks"][:len(before)], before)
        self.assertEqual(run["context"]["status"], "complete")
        self.assertEqual(os.path.getsize(os.path.join(self.out, "samples.bin")),
                         sum(8 * case["samples"] * case["samples_ranks"] for case in run["benchmarks"]))

    def test_a_hanging_launcher_is_ended(self):
        launcher = self.path("launcher")
        with open(launcher, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nsleep 1.5\nwhile read -r line; do :; done <&3\n")
        os.chmod(launcher, 0o755)
        reader, writer = os.pipe()
        self.addCleanup(os.close, writer)
        begin = time.monotonic()
        with open(reader, "rb"):
            done = subprocess.run(["sh", "-c", f'exec "$0" "$@" 3<&{reader}', PROGRAM, "run", "all_reduce", "--ranks", "2",
                                   "--out", self.path("run")], env={**os.environ, "SHARDMARK_MPIEXEC": launcher},
                                  pass_fds=[reader], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn(f"{launcher} still waits 10 s after its last rank", done.stderr)
        self.assertGreater(time.monotonic() - begin, 10)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
