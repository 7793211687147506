#!/usr/bin/env python3
"""The command line: one style of help and errors for every command, axes of units, booleans, seeds, version."""

import json
import os
import re
import shutil
import sys
import unittest

from process import NO_FIGURES, TemporaryFolder, read_run, shardmark

COMMANDS = ["run", "list", "collective", "compare", "ab", "history", "plan", "predict", "cluster", "recipes", "scale", "report", "health", "checkpoint", "data",
            "version", "manual", "completion"]
HISTORY = ["add", "list", "show", "plot", "export"]
VALUES = {"DIR", "FILE", "N", "SECONDS", "MINUTES", "NAME", "KIND", "KIND:KEY=VALUE,...", "PERCENT", "PREFIX", "SIZE", "COUNT",
          "NAME=VALUE", "LIBRARY=PATH", "A,B,C", "NEW...", "REGEX", "DEGREE", "RANK", "0"}
TINY = ["--max-seconds", "0.02", "--no-limits"]


def axis_lines(text):
    """Returns {axis: its line} of `run UNIT --help`."""
    axes = text[text.index("Axes of "):]
    return {line.split()[0]: line for line in axes.splitlines() if line.startswith("  --")}


class Help(TemporaryFolder):
    def help_of(self, *words):
        done = shardmark(*words, "--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout

    def refused(self, *words):
        done = shardmark(*words)
        self.assertEqual((done.returncode, done.stdout), (2, ""), words)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertRegex(done.stderr, r"^shardmark: .*[^.]\n$")
        return done.stderr

    def test_every_command_is_listed_and_has_help(self):
        general = shardmark()
        self.assertEqual(general.returncode, 0)
        self.assertEqual(re.findall(r"^  (\w+) ", general.stdout, re.MULTILINE), COMMANDS)
        for words in (["--help"], ["-h"], ["help"]):
            self.assertEqual(shardmark(*words).stdout, general.stdout)
        for words in [[command] for command in COMMANDS] + [["history", action] for action in HISTORY]:
            text = self.help_of(*words)
            self.assertRegex(text.splitlines()[0], rf"^Usage: shardmark {' '.join(words)} \[OPTIONS\]")
            self.assertNotIn("shardmark shardmark", text)
            self.assertEqual(shardmark(*words, "-h").stdout, text)
            self.assertLessEqual(len(text.splitlines()), 60, words)
            for option, value in re.findall(r"^  (-[\w, -]+?)(?: ([A-Z0][^ ]*))?(?:  |$)", text, re.MULTILINE):
                self.assertIn(value or "N", VALUES, (words, option))

    def test_options_of_a_training_step_are_in_its_help_only(self):
        for units in (["all_reduce"], ["gemm", "mlp"]):
            self.assertNotIn("--megatron-arguments", self.help_of("run", *units))
        for units in ([], ["gpt_step"], ["gemm", "training_speed"], ["gpt_grid"]):
            self.assertIn("--megatron-arguments", self.help_of("run", *units))

    def test_unknown_commands_are_errors_even_with_help(self):
        self.assertIn("unknown command 'colective'; did you mean 'collective'?", self.refused("colective", "--help"))
        self.assertIn("unknown command 'nonsense'; known: run, list,", self.refused("nonsense", "--help"))
        self.assertIn("unknown command '--verson'", self.refused("--verson"))

    def test_errors_have_one_style(self):
        for command in COMMANDS:
            refusal = self.refused(command, "--nonsense", "x")
            self.assertIn("unknown flag '--nonsense'", refusal)
            self.assertLess(len(refusal), 400)  # names few or no other flags
        self.assertIn("unknown unit 'al_reduce'; did you mean 'all_reduce'?", self.refused("run", "al_reduce", "--help"))
        self.assertIn("unknown unit 'al_reduce'; did you mean 'all_reduce'?", self.refused("list", "al_reduce"))
        self.assertIn("--timeout is 'soon'; expected a number above 0", self.refused("run", "--timeout", "soon"))
        self.assertIn("--launches is '0'; expected a whole number from 1 to 1000", self.refused("ab", "--launches", "0"))
        self.assertIn("--floor is '-1'; expected a number from 0 to 1000", self.refused("compare", "a", "b", "--floor", "-1"))
        self.assertIn("--out requires a value: DIR", self.refused("run", "--out"))
        self.assertIn("--out requires a value: DIR", self.refused("run", "--out", "--seed", "7"))
        self.assertIn("'--out' is given twice", self.refused("run", "--out", "a", "--out=b"))
        self.assertIn("--no-limits takes no value (got 'yes')", self.refused("run", "--no-limits=yes"))
        self.assertIn("health requires RUN", self.refused("health"))
        self.assertIn("unexpected argument 'b'", self.refused("report", "a", "b"))
        self.assertIn("data requires --out PREFIX", self.refused("data", "text"))
        self.assertIn("--bytes is '8x'; expected a size", self.refused("run", "all_reduce", "--bytes", "8x"))
        self.assertIn("--parameters is '7 billion'; expected an amount (example: 7B", self.refused("plan", "--parameters", "7 billion"))

    def test_help_lists_only_axes_of_named_units(self):
        general = self.help_of("run")
        self.assertNotIn("--algorithm", general)
        self.assertIn("shardmark run UNIT --help", general)
        axes = axis_lines(self.help_of("run", "all_reduce"))
        self.assertIn("--bytes", axes)
        self.assertIn("ring", axes["--algorithm"])
        self.assertNotIn("--hidden-size", axes)
        norm = axis_lines(self.help_of("run", "layer_norm"))
        self.assertNotIn("--algorithm", norm)
        self.assertRegex(norm["--sequence-parallel"], r"off,on.*; default off$")
        both = self.help_of("run", "layer_norm", "all_reduce")
        self.assertIn("Axes of layer_norm", both)
        self.assertIn("Axes of all_reduce", both)
        paper = axis_lines(self.help_of("run", "all_reduce", "--profile", "paper"))
        self.assertNotEqual(paper["--bytes"], axes["--bytes"])
        for unit in re.findall(r"^([a-z]\w*):", shardmark("list").stdout, re.MULTILINE):
            text = self.help_of("run", unit)
            self.assertLessEqual(len(text.splitlines()), 60, unit)
            self.assertLessEqual(max(map(len, text.splitlines())), 110, unit)

    def test_list_shows_a_unit_in_each_profile(self):
        units = shardmark("list").stdout
        self.assertNotIn("--", units)
        self.assertIn("oracles: numerics", units)
        norm = shardmark("list", "layer_norm").stdout
        self.assertRegex(norm, r"--ranks\n +quick +2, 4, 3\n +acceptance, paper +1, 2, 4, 8, 3\n")
        self.assertRegex(norm, r"--sequence-parallel\n +quick, acceptance, paper +off, on\n +allowed +off, on\n +default +off\n")
        self.assertNotIn("quick", shardmark("list", "layer_norm", "--profile", "paper").stdout)
        self.assertRegex(shardmark("list", "gpt_step").stdout, r"--tp, --tensor-model-parallel-size\n +quick")

    def test_version(self):
        done = shardmark("--version")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(shardmark("version").stdout, done.stdout)
        self.assertRegex(done.stdout, r"^shardmark \d+\.\d+\.\d+ \(commit [0-9a-f]{12}(-dirty)?, \w+ build\)\n")
        for line in (r"compiler +\w+ \d+", r"MPI +\S*(MPICH|Open MPI).*\d", r"CUDA +\S", r"NCCL +header \S+, loaded \S+", r"oneDNN +\d+\.\d+"):
            self.assertRegex(done.stdout, rf"(?m)^  {line}")


class Values(TemporaryFolder):
    def cases(self, *words):
        done = shardmark("run", *words, "--benchmark_list_tests")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()

    def test_booleans_are_on_or_off(self):
        words = ["layer_norm", "--ranks", "2", "--dtype", "float", "--transport", "shared_memory", "--seq-length", "20",
                 "--micro-batch-size", "2", "--sequence-parallel"]
        spelt = [self.cases(*words, value) for value in ("on", "1", "true")]
        self.assertEqual(len(spelt[0]), 1)
        self.assertTrue(all("/sequence-parallel:on" in name for name in spelt[0]), spelt[0])
        self.assertEqual(spelt[0], spelt[1])
        self.assertEqual(spelt[0], spelt[2])
        self.assertEqual(self.cases(*words, "off"), self.cases(*words, "0"))
        self.assertEqual(len(self.cases(*words, "on,off,0,true")), 2)
        overlap = ["zero_step", "--ranks", "2", "--zero-stage", "2", "--overlap_comm"]
        self.assertEqual(self.cases(*overlap, "1"), self.cases(*overlap, "on"))
        done = shardmark("run", *words, "maybe")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--sequence-parallel is 'maybe'; expected on or off", done.stderr)

    def test_runs_with_old_case_names_still_compare(self):
        folders = {side: self.path(side) for side in ("old", "new")}
        for folder in folders.values():
            done = shardmark("run", "layer_norm", "--ranks", "2", "--dtype", "float", "--transport", "shared_memory",
                             "--seq-length", "20", "--micro-batch-size", "2", "--sequence-parallel", "on", *TINY, "--out", folder, env=NO_FIGURES)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        run = read_run(folders["old"])
        for case in run["benchmarks"]:
            case["case"]["sequence-parallel"] = "1"
            case["name"] = case["run_name"] = "/".join([case["unit"], *(f"{axis}:{value}" for axis, value in case["case"].items())])
        with open(os.path.join(folders["old"], "run.json"), "w", encoding="utf-8") as file:
            json.dump(run, file)
        done = shardmark("compare", folders["old"], folders["new"], "--fail-on", "missing", "--json", self.path("c.json"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.path("c.json"), encoding="utf-8") as file:
            names = [case["name"] for case in json.load(file)["times"]]
        self.assertEqual(len(names), 1)
        self.assertTrue(all("sequence-parallel:on" in name for name in names), names)

    def test_a_seed_is_never_replaced(self):
        for name, seed in (("args.txt", 42), ("usual.txt", 1234)):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write("--num-layers 1 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
                           f"--vocab-size 64 --micro-batch-size 1 --global-batch-size 1 --seed {seed}")

        def run(arguments, *words, code=0):
            done = shardmark("run", "gpt_step", "--ranks", "1", "--dtype", "float", "--transport", "shared_memory", "--schedule", "1f1b",
                             "--megatron-arguments", self.path(arguments), *words, *TINY, "--out", self.path("run"), env=NO_FIGURES)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            if code:
                return done.stderr
            with open(self.path("run/environment.json"), encoding="utf-8") as file:
                seed = json.load(file)["same_on_all_ranks"]["options"]["seed"]
            shutil.rmtree(self.path("run"))
            return seed
        for seed in ("1234", "7"):
            self.assertIn(f"--seed {seed} conflicts with {self.path('args.txt')} (seed 42)", run("args.txt", "--seed", seed, code=2))
        self.assertIn("(seed 1234)", run("usual.txt", "--seed", "7", code=2))
        self.assertEqual(run("args.txt"), "42")
        self.assertEqual(run("args.txt", "--seed", "42"), "42")
        self.assertEqual(run("usual.txt", "--seed", "1234"), "1234")

    def test_an_explicit_default_counts_as_given(self):
        done = shardmark("collective", "all_reduce", "--traffic", "skewed")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--traffic requires all_to_all_v (got all_reduce)", done.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
