#!/usr/bin/env python3
"""Cluster files from runs, and runs that are compared with a cluster."""

import os
import tomllib
import unittest

from process import NO_FIGURES, TemporaryFolder, read_run, shardmark

SHAPES = "512x512x256,512x512x512,512x512x1024"


class Expectations(TemporaryFolder):
    def gemm(self, folder, *words):
        return shardmark("run", "gemm", "--ranks", "1", "--dtype", "float", "--shape", SHAPES, "--max-seconds", "0.02",
                         "--no-limits", "--out", self.path(folder), *words, env=NO_FIGURES)

    def test_a_cluster_is_measured_and_expected(self):
        done = self.gemm("first")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        measured = shardmark("cluster", "measure", self.path("first"), "--output", self.path("here.toml"))
        self.assertEqual(measured.returncode, 0, measured.stderr)
        self.assertRegex(measured.stdout, r"gpu.float32_tflops +[0-9.e-]+ +3 shapes of gemm, error [0-9]+ %")
        self.assertRegex(measured.stdout, r"network.latency_us +20 +not measured: two_cores")
        self.assertIn("missing: memory_bandwidth (gpu.bandwidth_gb_s)", measured.stdout)
        with open(self.path("here.toml"), "rb") as file:
            self.assertEqual(tomllib.load(file)["name"], "here")
        shown = shardmark("cluster", "show", self.path("here.toml"))
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("| GPU | | GPU |", shown.stdout)

        # A machine is about as fast as it was a moment ago; other work may run.
        again = self.gemm("again", "--expect", self.path("here.toml"), "--expect-floor", "0.02")
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertIn("of expectation", again.stdout)
        self.assertTrue(os.path.exists(self.path("again/cluster.toml")))
        for case in read_run(self.path("again"))["benchmarks"]:
            self.assertGreaterEqual(case["expected_s"], case["specified_s"])
            self.assertAlmostEqual(case["expected_fraction"] * case["real_time"] / 1e9 / case["expected_s"], 1, places=3)
            self.assertEqual(case["expected_floor"], 0.02)
        runs = f"{self.path('first')},{self.path('again')}"
        compared = shardmark("predict", "--measured", runs, "--cluster", self.path("here.toml"))
        self.assertEqual(compared.returncode, 0, compared.stderr)
        self.assertRegex(compared.stdout, r"^computation, 6 cases: mean absolute error \d+\.\d %, worst [+-]\d+\.\d % \(gemm/")

    def test_a_slower_machine_is_rejected(self):
        done = self.gemm("slow", "--expect", "dgx_h100")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"REJECTED: 3 passed, 0 failed, 0 skipped; \d cases? below the expected speed")
        self.assertRegex(done.stdout, r"gemm/.*\n +\d+ % of the expected speed \(floor 80 %\)")
        with open(self.path("slow/report.html"), encoding="utf-8") as file:
            self.assertIn("Slower than expected", file.read())

    def test_mistakes(self):
        for words, text in ((["cluster", "measur", "x"], "did you mean 'measure'?"),
                            (["cluster", "show", "dgx_a10"], "did you mean 'dgx_a100'?"),
                            (["cluster", "measure", self.path("none")], "no run at"),
                            (["run", "gemm", "--expect-floor", "0.5"], "--expect-floor requires --expect CLUSTER"),
                            (["run", "gemm", "--expect", "dgx_a10"], "did you mean 'dgx_a100'?"),
                            (["run", "gemm", "--expect", "dgx_a100", "--expect-floor", "stp=0.5"], "did you mean 'step'?"),
                            (["predict", "--measured", self.path("none")], "no run at"),
                            (["predict", "--rules", "--search"], "give one of --search, --rules"),
                            (["predict", "--claims", "--figures", "x"], "give one of --claims, --figures"),
                            (["predict", "--objective", "model"], "--objective requires --search")):
            done = shardmark(*words)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
