"""scripts/compare_mpi: one round against MPICH, the ratios, and a peer that is not installed."""
import csv
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "compare_mpi"
LOADER = importlib.machinery.SourceFileLoader("compare_mpi", str(SCRIPT))
COMPARE = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare_mpi", LOADER))
LOADER.exec_module(COMPARE)


class Chosen:
    def algorithm(self, operation, ranks, size):
        return "ring"


class CompareMpi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = Path(folder.name)

    def run_script(self, *words):
        return subprocess.run([sys.executable, SCRIPT, "--build", os.environ["SHARDMARK_BUILD"], "--folder",
                               self.place / "peers", "--out", self.place / "out", *words],
                              capture_output=True, text=True)

    def test_one_round_against_mpich(self):
        done = self.run_script("--ranks", "2", "--operations", "all_to_all", "broadcast", "--bytes", "8", "4096", "--rounds", "1",
                               "--seconds", "0.01", "--peers", "mpich", "intel_mpi")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("intel_mpi left out: no ", done.stderr)
        self.assertIn("run with --install", done.stderr)
        with open(self.place / "out/compare_mpi.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(row["operation"], row["bytes"]) for row in rows],
                         [(operation, size) for operation in ("broadcast", "all_to_all") for size in ("8", "4096")])
        for row in rows:
            self.assertEqual(row["best_peer"], "mpich")
            self.assertAlmostEqual(float(row["ratio"]), float(row["mpich_us"]) / float(row["ours_us"]))
            self.assertIn(f"| 2 | {row['operation']} | {row['bytes']} |", done.stdout)
        self.assertTrue((self.place / "out/compare_mpi.svg").exists() or "no figure" in done.stderr)

    def test_the_best_peer_is_the_one_with_the_smallest_median(self):
        times = {"ours": [1e-6, 2e-6, 4e-6], "mpich": [9e-6, 1e-6, 8e-6], "gloo": [3e-6, 4e-6, 5e-6]}
        row, = COMPARE.rows_of({(2, "all_reduce", 8): times}, Chosen(), ["mpich", "gloo"])
        self.assertEqual(row["best_peer"], "gloo")
        self.assertAlmostEqual(row["ratio"], 2)  # 3, 2 and 1.25
        self.assertAlmostEqual(row["lowest"], 1.25)
        self.assertAlmostEqual(row["ours_us"], 2)

    def test_the_median_of_three_launches_chooses_ours(self):
        ours = COMPARE.Ours.__new__(COMPARE.Ours)
        ours.fastest, ours.algorithms = {}, lambda operation: ["ring", "direct"]
        launches = iter([{"ring": 1, "direct": 3}, {"ring": 9, "direct": 2}, {"ring": 8, "direct": 4}])
        ours.cases = lambda *_: [{"bytes": 16, "real_time": time, "case": {"algorithm": name}}
                                 for name, time in next(launches).items()]
        ours.choose(4, {"all_reduce": [16]}, 0.1)
        self.assertEqual(ours.algorithm("all_reduce", 4, 16), "direct")

    def test_an_unknown_peer_is_an_error(self):
        done = self.run_script("--peers", "mpch")
        self.assertEqual(done.returncode, 2)
        self.assertIn("mpch", done.stderr)


unittest.main()
