"""scripts/scaling: exponents of made-up costs, the page of given figures, its measuring, and one quick group."""
import contextlib
import importlib.machinery
import importlib.util
import io
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "scaling"
LOADER = importlib.machinery.SourceFileLoader("scaling", str(SCRIPT))
SCALING = importlib.util.module_from_spec(importlib.util.spec_from_loader("scaling", LOADER))
sys.modules["scaling"] = SCALING  # dataclasses look their module up
LOADER.exec_module(SCALING)
SIZES = [10, 100, 1000, 10000, 100000]
ABOUT = {"command": "scripts/scaling", "date": "2026-11-27", "processor": "a processor", "cores": 2, "launches": 3,
         "version": "shardmark 0.1.0 (commit abc)"}


def series_of(cost, memory=lambda n: 20, sizes=SIZES, **more):
    return SCALING.Series("made up", "cases", "made-up N", {"cpu_s": 1, "megabytes": 1},
                          [SCALING.Point(n, cost(n) + 1, cost(n), memory(n)) for n in sizes], **more)


class Exponent(unittest.TestCase):
    def exponent(self, cost, sizes=SIZES, smallest=0.0):
        return SCALING.exponent(sizes, [cost(n) for n in sizes], smallest)

    def test_leaves_out_a_fixed_start_up(self):
        for start in (0, 0.5, 100):
            self.assertAlmostEqual(self.exponent(lambda n, start=start: start + 1e-3 * n), 1, places=9)
            self.assertAlmostEqual(self.exponent(lambda n, start=start: start + 1e-6 * (n - 10) ** 2), 2, places=9)
            self.assertEqual(self.exponent(lambda n, start=start: start), 0)

    def test_follows_the_larger_sizes(self):
        self.assertAlmostEqual(self.exponent(lambda n: 1 + 1e-3 * n + 1e-5 * n * n), 2, delta=0.05)
        self.assertAlmostEqual(self.exponent(lambda n: n * math.log(n)), 1.11, delta=0.01)
        # n² = (n - 1)² + 2 (n - 1) + 1: few sizes make it 1.9
        self.assertAlmostEqual(self.exponent(lambda n: n * n, [1, 2, 4, 8, 16, 32, 64]), 1.9, delta=0.01)

    def test_small_growth_is_noise(self):
        self.assertEqual(self.exponent(lambda n: 1 + 1e-6 * n, smallest=0.1), 0)
        self.assertEqual(self.exponent(lambda n: 1 + 2e-6 * n), 0)  # less than a quarter of the first cost
        self.assertAlmostEqual(self.exponent(lambda n: 1 + 1e-3 * n if n > 1000 else 1 + 1e-6 * n, smallest=0.1), 1, places=2)
        self.assertAlmostEqual(self.exponent(lambda n: 1 + 3e-6 * n), 1, places=9)

    def test_needs_three_sizes(self):
        self.assertIsNone(self.exponent(lambda n: n, [10, 100]))


class Page(unittest.TestCase):
    def test_names_exponents_above_the_best_possible(self):
        square = series_of(lambda n: 1e-7 * n * n, note="1,000,000 cases: longer than 120 s")
        text = SCALING.page([square], ABOUT)
        self.assertIn("- made up: CPU s\n", text)
        self.assertIn("| made up | 10 to 100,000 cases | 1,000 | 20 | 2.00 **above** | 0.00 | linear, linear |", text)
        self.assertIn("| 10,000 | 11 | 10 | 20 |", text)
        self.assertIn("Not measured: 1,000,000 cases: longer than 120 s.", text)
        self.assertIn("`scripts/scaling` wrote this page on 2026-11-27, on a processor, 2 cores", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 120)

    def test_the_best_possible_is_of_each_column(self):
        line = series_of(lambda n: 1e-3 * n, memory=lambda n: 10 + 1e-3 * n)
        text = SCALING.page([line], ABOUT)
        self.assertIn("No exponent is above the best possible.", text)
        self.assertIn("| 100 | 110 | 1.00 | 1.00 | linear, linear |", text)
        line.best = {"cpu_s": SCALING.LINEAR, "megabytes": SCALING.CONSTANT}
        self.assertEqual(SCALING.above(line), ["megabytes"])
        self.assertIn("| 1.00 | 1.00 **above** | linear, constant |", SCALING.page([line], ABOUT))

    def test_a_column_of_one_series_has_an_exponent(self):
        pages = series_of(lambda n: 1e-3 * n)
        pages.best["MB of report.html"] = SCALING.LINEAR
        for point in pages.points:
            point.more = {"MB of report.html": 1 + 1e-3 * point.size ** 1.5}
        text = SCALING.page([pages], ABOUT)
        self.assertRegex(text, r"Exponent of MB of report.html: 1\.50 \*\*above\*\*; best possible: linear\.")
        self.assertIn("- made up: MB of report.html\n", text)


class Launch(unittest.TestCase):
    def test_memory_is_that_of_the_launch_and_not_of_this_process(self):
        held = bytearray(300_000_000)
        small = SCALING.launched([sys.executable, "-c", "pass"], 60, {})
        large = SCALING.launched([sys.executable, "-c", "len(bytearray(200_000_000))"], 60, {})
        self.assertEqual((small[3], large[3], len(held)), (0, 0, 300_000_000))
        self.assertLess(small[2], 100)
        self.assertTrue(200 < large[2] < 300, large[2])

    def test_time_and_exit_code_include_descendants(self):
        busy = f"{sys.executable} -c 'while __import__(\"time\").process_time() < 0.3: pass'; exit 5"
        seconds, cpu_s, _, code, _ = SCALING.launched(["sh", "-c", busy], 60, {})
        self.assertEqual(code, 5)
        self.assertGreater(cpu_s, 0.29)
        self.assertGreater(seconds, 0.29)

    def test_a_launch_that_takes_too_long_ends_its_row(self):
        with self.assertRaisesRegex(SCALING.TooLong, r"longer than 0\.2 s"):
            SCALING.launched(["sleep", "60"], 0.2, {})

        def launch(size):
            if size > 2:
                raise SCALING.TooLong("longer than 1 s")
            return SCALING.Point(0, 1, 1, 1)
        with contextlib.redirect_stderr(io.StringIO()):
            series = SCALING.Program("none", 1).measure(SCALING.Series("made up", "runs", "", {}), [1, 2, 3, 4], launch)
        self.assertEqual([point.size for point in series.points], [1, 2])
        self.assertEqual(series.note, "3 runs: longer than 1 s")


class Script(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = Path(folder.name)

    def run_script(self, *words, build=None):
        return subprocess.run([sys.executable, SCRIPT, "--build", build or os.environ["SHARDMARK_BUILD"], *words],
                              capture_output=True, text=True)

    def refused(self, code, *words, **more):
        done = self.run_script(*words, **more)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def test_measures_a_history(self):
        done = self.run_script("--quick", "--only", "history", "--out", self.place / "page.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        text = (self.place / "page.md").read_text()
        for name in ("history add", "history show CASE", "history show", "history list"):
            self.assertIn(f"\n| {name} | 1 to 100 runs | ", text)
            self.assertIn(f"\n## {name}\n", text)

    def test_refuses_what_it_cannot_measure(self):
        self.assertIn(f"no {self.place}/shardmark; run scripts/build first", self.refused(1, build=self.place))
        self.assertIn("--seconds is 0; expected more than 0", self.refused(1, "--seconds", "0"))
        self.assertIn("'rank'", self.refused(2, "--only", "rank"))
        (self.place / "shardmark").write_text("#!/bin/sh\necho out of order\nexit 3\n")
        (self.place / "shardmark").chmod(0o755)
        self.assertIn("shardmark version: exit code 3\nout of order", self.refused(1, build=self.place))


unittest.main()
