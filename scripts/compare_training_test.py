"""scripts/compare_training with programs that print given times: ratios, order, files, and peers that cannot run."""
import contextlib
import csv
import importlib.machinery
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

SCRIPT = Path(__file__).resolve().parent / "compare_training"
LOADER = importlib.machinery.SourceFileLoader("compare_training", str(SCRIPT))
COMPARE = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare_training", LOADER))
LOADER.exec_module(COMPARE)
Step = COMPARE.Step

# A step of ours takes 2 s per 256 tokens in float, and 1 s in bfloat16.
PROGRAM = """#!{python}
import json, pathlib, sys
given = {{word: sys.argv[at + 1] for at, word in enumerate(sys.argv[:-1]) if word.startswith("--")}}
seconds = int(given["--micro-batch-size"]) * int(given["--seq-length"]) / 256 * (2 if given["--dtype"] == "float" else 1)
parts = {{"data": 0.1, "forward": 0.25, "backward input": 0.3, "backward weights": 0.2, "optimizer": 0.15}}
out = pathlib.Path(given["--out"])
out.mkdir(exist_ok=True)
(out / "run.json").write_text(json.dumps({{"benchmarks": [{{"real_time": seconds * 1e9, "gemm_fraction": 0.75,
    "breakdown_s": [{{"name": name, "seconds": share * seconds}} for name, share in parts.items()]}}]}}))
with open({log!r}, "a") as log:
    log.write("ours ")
"""
# PyTorch: the first two steps take 100 s; then eager takes 8, 9, 10, … s and compile 6 s.
PYTHON = """#!{python}
import sys
if sys.argv[1] == "-c":
    print("2.99")
    sys.exit()
mode, dtype = sys.argv[2:4]
if dtype == "bfloat16" and mode == "compile":
    sys.exit("Traceback\\nno compiler")
print("a line of another kind")
number = 0
while sys.stdin.read(1):
    total = 100 if number < 2 else 6 + number if mode == "eager" else 6
    number += 1
    with open({log!r}, "a") as log:
        log.write(mode + " ")
    print("step", total, 0.25 * total, 0.5 * total, 0.25 * total, 11.0, flush=True)
"""

# llm.c: its third step takes 7 s. It needs its weights and tokens, and never ends by itself.
LLM_C = """#!{python}
import pathlib, time
for name in ("gpt2_124M.bin", "dev/data/tinyshakespeare/tiny_shakespeare_train.bin",
             "dev/data/tinyshakespeare/tiny_shakespeare_val.bin"):
    assert pathlib.Path(name).stat().st_size > 1024
print("val loss 11.0")
for number, milliseconds in enumerate((90000, 50000, 7000, 1)):
    print("step %d: train loss 11.0 (took %f ms)" % (number, milliseconds), flush=True)
time.sleep(600)
"""


class CompareTraining(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = Path(folder.name)
        self.log = self.place / "log"
        self.program("build/shardmark", PROGRAM)
        self.program("no_figures/matplotlib.py", "raise ImportError\n")  # importing matplotlib takes most of a run

    def program(self, path, text):
        file = self.place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(python=sys.executable, log=str(self.log)))
        file.chmod(0o755)

    def run_script(self, *words, figure=False):
        environment = os.environ if figure else os.environ | {"PYTHONPATH": str(self.place / "no_figures")}
        return subprocess.run([sys.executable, SCRIPT, "--build", self.place / "build", "--folder", self.place / "peers",
                               "--out", self.place / "out", *words], capture_output=True, text=True, env=environment)

    def rows(self):
        with open(self.place / "out/compare_training.csv") as file:
            return {(row["sequence"], row["dtype"], row["program"]): row for row in csv.DictReader(file)}

    def test_three_rounds_with_given_times(self):
        self.program("peers/venv/bin/python", PYTHON)
        done = self.run_script("--shapes", "4x64", "1x512", "--rounds", "3", figure=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("llm_c left out: no ", done.stderr)
        self.assertIn("pytorch_compile left out: no step of 4x64 in bfloat16: exit code 1: no compiler", done.stderr)
        rows = self.rows()
        eager, best = rows["64", "float", "pytorch_eager"], rows["64", "float", "pytorch_compile"]
        self.assertEqual([float(eager[key]) for key in ("ratio", "lowest", "highest")], [4.5, 4, 5])
        self.assertEqual([float(eager[key]) for key in ("step_s", "forward_s", "backward_s", "optimizer_s", "other_s")],
                         [9, 2.25, 4.5, 2.25, 0])
        self.assertEqual([best["ratio"], best["best_pytorch"], eager["best_pytorch"]], ["3.0", "True", "False"])
        self.assertNotIn(("64", "bfloat16", "pytorch_compile"), rows)
        self.assertEqual(float(rows["512", "bfloat16", "pytorch_eager"]["ratio"]), 4.5)
        ours = rows["512", "float", "ours"]
        for key, expected in {"step_s": 4, "forward_s": 1, "backward_s": 2, "optimizer_s": 0.6, "other_s": 0.4,
                              "tokens_per_second": 128, "products": 0.75}.items():
            self.assertAlmostEqual(float(ours[key]), expected, msg=key)
        table = (self.place / "out/compare_training.md").read_text()
        self.assertIn("| 4x64 | float | 2 | 0.75 | 4.50 (4.00 .. 5.00) | 3.00 (3.00 .. 3.00) | 3.00 (3.00 .. 3.00) |", table)
        self.assertIn("| 1x512 | bfloat16 | 2 | 0.75 | 4.50 (4.00 .. 5.00) | – | 4.50 (4.00 .. 5.00) |", table)
        self.assertIn("| 4x64 | float | pytorch_eager | 9 | 2.25 | 4.5 | 2.25 | 0 | 28 |", table)
        self.assertIn("PyTorch 2.99, 3 rounds", table)
        self.assertIn("\npytorch_compile left out: no step of 4x64 in bfloat16: exit code 1: no compiler\n", table)
        self.assertIn(table, done.stdout)
        self.assertTrue((self.place / "out/compare_training.svg").exists() or "no figure" in done.stderr)

    def test_another_program_is_the_first_in_each_round(self):
        self.program("peers/venv/bin/python", PYTHON)
        self.run_script("--shapes", "4x64", "--dtype", "float", "--rounds", "4", "--peers", "pytorch_eager", "pytorch_compile")
        turns = self.log.read_text().split()[2 * COMPARE.WARM_UPS:]
        self.assertEqual(turns, ["ours", "eager", "compile", "eager", "compile", "ours", "compile", "ours", "eager",
                                 "ours", "eager", "compile"])

    def test_without_peers_ours_is_measured_separately(self):
        done = self.run_script("--shapes", "4x64", "--dtype", "float", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("llm.c/train_gpt2; name the train_gpt2 of your llm.c with --llm-c", done.stderr)
        for name in ("pytorch_eager", "pytorch_compile"):
            self.assertIn(f"{name} left out: no {self.place}/peers/venv/bin/python; run with --install", done.stderr)
        self.assertEqual(list(self.rows()), [("64", "float", "ours")])

    def test_a_python_without_torch_is_left_out(self):
        self.program("peers/venv/bin/python", "#!{python}\nraise SystemExit(1)\n")
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            options = COMPARE.read_options(["--peers", "pytorch_eager", "--folder", str(self.place / "peers")])
            self.assertEqual(COMPARE.available(options, self.place, []), [])
        self.assertIn("has no torch; run with --install", said.getvalue())

    def test_a_step_that_takes_too_long_ends_its_peer(self):
        self.program("peers/venv/bin/python", "#!{python}\nimport sys, time\nif sys.argv[1] != '-c': time.sleep(60)\n")
        options = COMPARE.read_options(["--peers", "pytorch_eager", "--folder", str(self.place / "peers")])
        options.step_seconds = 0.1
        peers, absent = COMPARE.available(options, self.place, []), []
        with contextlib.redirect_stderr(io.StringIO()):
            steps = COMPARE.compared(mock.Mock(step=lambda *_: Step(1, 0, 0, 0)), peers, (4, 64), "float", 1,
                                     absent)
        self.assertEqual(len(steps), 1)
        self.assertEqual(absent, ["pytorch_eager left out: no step of 4x64 in float within 0.1 s (--step-seconds)"])

    def test_llm_c_has_one_shape_and_its_third_step_counts(self):
        self.program("train_gpt2", LLM_C)
        done = self.run_script("--shapes", "4x64", "4x256", "--dtype", "float", "--rounds", "2", "--peers", "llm_c", "--llm-c",
                               self.place / "train_gpt2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("llm_c left out: its step is 4x64, not 4x256", done.stderr)
        rows = self.rows()
        self.assertNotIn(("256", "float", "llm_c"), rows)
        row = rows["64", "float", "llm_c"]
        self.assertEqual([row[key] for key in ("step_s", "ratio", "forward_s", "other_s")], ["7.0", "3.5", "", ""])
        self.assertIn("| 4x64 | float | llm_c | 7 | – | – | – | – | 37 |", done.stdout)

    def test_an_llm_c_that_fails_is_named(self):
        self.program("train_gpt2", "#!{python}\nprint('Bad magic model file')\n")
        done = self.run_script("--shapes", "4x64", "--dtype", "float", "--rounds", "1", "--peers", "llm_c", "--llm-c",
                               self.place / "train_gpt2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("llm_c: no step 2 after 1500 s or its last line: Bad magic model file", done.stderr)

    def test_a_ratio_is_of_one_round(self):
        steps = {"ours": [Step(1, 0, 0, 0), Step(2, 0, 0, 0), Step(4, 0, 0, 0)],
                 "llm_c": [Step(9, 0, 0, 0), Step(1, 0, 0, 0), Step(2, 0, 0, 0)],
                 "pytorch_eager": [Step(3, 0, 0, 0), Step(4, 0, 0, 0), Step(5, 0, 0, 0)]}
        _, llm_c, eager = COMPARE.rows_of({((4, 64), "float"): steps})
        self.assertEqual([llm_c[key] for key in ("ratio", "lowest", "highest", "best_pytorch")], [0.5, 0.5, 9, False])
        self.assertEqual([eager[key] for key in ("ratio", "lowest", "highest", "best_pytorch")], [2, 1.25, 3, True])

    def test_bad_options_are_rejected_in_one_line(self):
        for words, line in {
                ("--shapes", "4y64"): "--shapes is 4y64; expected a micro-batch of 1 or more and a sequence of 1 to 1024 "
                                      "(example: 4x256)",
                ("--shapes", "1x1025"): "--shapes is 1x1025; expected a micro-batch of 1 or more and a sequence of 1 to 1024 "
                                        "(example: 4x256)",
                ("--rounds", "0"): "--rounds is 0; expected a whole number of 1 or more (example: 5)",
                ("--step-seconds", "-1"): "--step-seconds is -1; expected a whole number of 1 or more (example: 300)",
                ("--peers", "pytorch"): "unknown peer 'pytorch'; did you mean 'pytorch_eager'?",
                ("--dtype", "bfloat1"): "unknown dtype 'bfloat1'; did you mean 'bfloat16'?"}.items():
            done = self.run_script(*words)
            self.assertEqual((done.returncode, done.stderr), (2, f"compare_training: {line}\n"))

    def test_a_build_without_the_program_is_an_error(self):
        (self.place / "build/shardmark").unlink()
        done = self.run_script()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, f"compare_training: no {self.place}/build/shardmark; run scripts/build first\n")


unittest.main()
