#!/usr/bin/env python3
"""`shardmark collective` with the flags and output of nccl-tests, as scripts use it.

Takes the built program from $SHARDMARK_PROGRAM, and from $SHARDMARK_LAUNCHER (mpiexec) the launcher of
its MPI library. Ranks are real processes.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ["SHARDMARK_PROGRAM"]
LAUNCHER = os.environ.get("SHARDMARK_LAUNCHER", "mpiexec").split()
USUAL = ["-b", "8", "-e", "64K", "-f", "8", "-n", "3", "-w", "2"]


def collective(*words, env=None, timeout=120):
    return subprocess.run([PROGRAM, "collective", *words], capture_output=True, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})


def rows(output):
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]


class Collective(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = os.path.join(folder.name, "out.json")

    def good(self, *words, env=None):
        done = collective(*words, env=env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("# Out of bounds values : 0 OK\n", done.stdout)
        self.assertTrue(re.search(r"^# Avg bus bandwidth    : [0-9.e+-]+ ", done.stdout, re.M))
        return done.stdout

    def test_the_usual_command_line(self):
        out = self.good("all_reduce", "--ranks", "2", *USUAL, "-c", "1", "-o", "sum", "-d", "float",
                        "-r", "0", "-J", self.json)
        self.assertEqual([row[:5] for row in rows(out)],
                         [[str(size), str(size // 4), "float", "sum", "-1"]
                          for size in (8, 64, 512, 4096, 32768)])
        self.assertTrue(all(len(row) == 13 and row[8] == row[12] == "0" for row in rows(out)))
        self.assertEqual(len(re.findall(r"^#  Rank +\d+ Group", out, re.M)), 2)
        with open(self.json, encoding="utf-8") as file:
            written = json.load(file)
        self.assertEqual([result["size"] for result in written["results"]],
                         [8, 64, 512, 4096, 32768])
        # The file has the same numbers, and the average is their mean.
        for row, result in zip(rows(out), written["results"]):
            self.assertAlmostEqual(float(row[7]), result["out_of_place"]["bus_bw"], delta=0.006)
        means = [result[place]["bus_bw"] for result in written["results"]
                 for place in ("out_of_place", "in_place")]
        average = float(re.search(r"Avg bus bandwidth    : (\S+)", out).group(1))
        self.assertAlmostEqual(average, sum(means) / 10, delta=1e-4 * average)
        self.assertAlmostEqual(average, written["average_bus_bandwidth"]["bandwidth"],
                               delta=1e-4 * average)
        self.assertEqual(written["out_of_bounds"], {"count": 0, "okay": "true"})

    def test_every_operation_over_both_transports(self):
        for operation in ("all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
                          "alltoall", "sendrecv"):
            ways = [["--algorithm", "library"], []]
            if operation in ("reduce", "alltoall"):
                ways.append(["--transport", "mpi"])
            for more in ways:
                out = self.good(operation, "-g", "2", "-b", "8", "-e", "4K", "-f", "512", "-n", "2",
                                "-r", "1", "-d", "bfloat16", *more)
                root = "1" if operation in ("broadcast", "reduce", "gather", "scatter") else "-1"
                self.assertEqual([row[4] for row in rows(out)], [root, root])

    def test_all_types_operations_and_roots(self):
        out = self.good("reduce", "-t", "2", "-b", "64", "-e", "64", "-n", "1", "-d", "all", "-o",
                        "all", "-r", "all")
        self.assertEqual(len(rows(out)), 12 * 5 * 2)
        self.assertEqual(len({tuple(row[2:5]) for row in rows(out)}), 120)

    def test_a_file_is_never_written_over(self):
        with open(self.json, "w", encoding="utf-8") as file:
            file.write("mine")
        out = self.good("all_gather", "--ranks", "2", *USUAL, "-J", self.json)
        self.assertIn(f"# Writing JSON output to {self.json}.0\n", out)
        with open(self.json, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")
        with open(self.json + ".0", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["results"][0]["size"], 0)

    def test_missing_checks_are_reported(self):
        out = self.good("all_reduce", "--ranks", "2", *USUAL, "-c", "0")
        self.assertTrue(all(row[8] == row[12] == "N/A" for row in rows(out)))

    def test_too_little_bandwidth_is_7(self):
        out = self.good("all_reduce", "--ranks", "2", *USUAL, env={"NCCL_TESTS_MIN_BW": "1e-9"})
        self.assertRegex(out, "Avg bus bandwidth    : .* OK\n")
        done = collective("all_reduce", "--ranks", "2", *USUAL, env={"NCCL_TESTS_MIN_BW": "1e9"})
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertRegex(done.stdout, "Avg bus bandwidth    : .* FAILED\n")

    def test_bad_input_is_2_in_one_line(self):
        for words, text in ((["al_reduce"], "'all_reduce'"), (["all_reduce", "-q", "1"], "'-q'"),
                            (["all_reduce", "-d", "flot"], "'float'"),
                            (["all_reduce", "-G", "4"], "CUDA graphs"),
                            (["broadcast", "--ranks", "2", "-r", "2"], "not one of 2 ranks")):
            done = collective(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(text, done.stderr)
        self.assertEqual(collective("all_reduce", env={"NCCL_TESTS_SPLIT": "MOD 2"}).returncode, 2)
        self.assertEqual(collective("all_reduce", "-J", "/nowhere/x.json").returncode, 3)

    def test_ranks_of_a_launcher_are_used(self):
        def launched(*words):
            return subprocess.run([*LAUNCHER, "-n", "2", PROGRAM, "collective", "all_reduce", *USUAL,
                                   *words], capture_output=True, text=True, timeout=120,
                                  stdin=subprocess.DEVNULL, check=False)
        done = launched("-g", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall(r"^#  Rank +\d+ Group", done.stdout, re.M)), 2)
        for words, text in ((["-g", "2"], "each process is one rank"),
                            (["--ranks", "3"], "the launcher started 2")):
            done = launched(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)

    def started(self, *words):
        process = subprocess.Popen([PROGRAM, "collective", "all_reduce", "--ranks", "2", *USUAL,
                                    "-N", "0", *words], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        ranks = {}
        for line in process.stdout:
            if found := re.match(r"#  Rank +(\d+) Group +0 Pid +(\d+) ", line):
                ranks[int(found.group(1))] = int(found.group(2))
            if not line.startswith("#"):
                break
        return process, ranks

    def test_ctrl_c_keeps_measured_rows(self):
        process, _ = self.started("-J", self.json)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, error)
        self.assertIn("# Avg bus bandwidth    : ", out)
        with open(self.json, encoding="utf-8") as file:
            self.assertGreater(len(json.load(file)["results"]), 0)

    def test_a_rank_that_hangs_is_named(self):
        process, ranks = self.started("-T", "2")
        os.kill(ranks[1], signal.SIGSTOP)
        begin = time.monotonic()
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 4, error)
        self.assertIn("rank 1", error)
        self.assertLess(time.monotonic() - begin, 30)


if __name__ == "__main__":
    unittest.main()
