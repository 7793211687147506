#!/usr/bin/env python3
"""The program as a user meets it: bad input, good runs.

Takes the built program from $SHARDMARK_PROGRAM, and from $SHARDMARK_LAUNCHER (mpiexec) what
starts ranks of the MPI library that it is built on. Ranks are real processes.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["SHARDMARK_PROGRAM"]
LAUNCHER = os.environ.get("SHARDMARK_LAUNCHER", "mpiexec").split()


def shardmark(*words, env=None, timeout=120):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def read_run(directory):
    with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
        return json.load(file)


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)


class BadInput(TemporaryFolder):
    def refused(self, code, words, *says, env=None):
        """One line that says what and the nearest right thing, the exit code, nothing left behind."""
        out = self.path("run")
        if words[0] == "run" and "--out" not in words:
            words = [*words, "--out", out]
        done = shardmark(*words, env=env)
        self.assertEqual(done.returncode, code, done.stderr)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for text in says:
            self.assertIn(text, lines[0])
        self.assertFalse(os.path.exists(out), "nothing may be left half-written")

    def test_misspelt_words_name_the_nearest(self):
        self.refused(2, ["rnu"], "unknown command 'rnu'", "'run'")
        self.refused(2, ["run", "al_reduce"], "unknown unit 'al_reduce'", "'all_reduce'")
        self.refused(2, ["run", "all_reduce", "--byts", "8"], "unknown flag '--byts'", "'--bytes'")
        self.refused(2, ["run", "all_reduce", "--dtype", "flot"], "'flot'", "'float'")
        self.refused(2, ["run", "all_reduce", "--algorithm", "rign"], "'rign'", "'ring'")
        self.refused(2, ["run", "--profile", "quik"], "'quik'", "'quick'")
        self.refused(2, ["run", "--device", "cudaa"], "'cudaa'", "'cuda'")
        self.refused(2, ["run", "all_reduce", "--bytes", "8x"], "8x")
        self.refused(2, ["run", "--benchmark_filtr=x"], "benchmark_filtr")

    def test_degrees_that_do_not_fit(self):
        gpt = ["run", "gpt_step"]
        self.refused(2, [*gpt, "--tp", "3", "--ranks", "3", "--pp", "1", "--dp", "1"], "3", "heads")
        self.refused(2, [*gpt, "--ranks", "6", "--tp", "2", "--pp", "2", "--dp", "2"], "ranks 6", "= 8")
        self.refused(2, [*gpt, "--ranks", "1", "--global-batch-size", "7", "--micro-batch-size", "2"],
                     "global-batch-size 7", "8")

    def test_ways_to_hold_activations(self):
        gpt = ["run", "gpt_step", "--ranks", "2", "--pp", "1", "--dp", "1"]
        self.refused(2, ["run", "gpt_step", "--tp", "1", "--sequence-parallel", "1"], "tp is 1", "nearest", "2")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "selectiv"], "'selective'")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-method", "block"], "recompute-granularity full")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "full", "--recompute-num-layers", "5"],
                     "recompute-num-layers is 5", "nearest that fits is 4")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "full", "--sequence-parallel", "1",
                         "--distribute-saved-activations", "1"], "sequence-parallel", "one of the two")

    def test_data_files(self):
        gpt = ["run", "gpt_step", "--ranks", "1"]
        self.refused(2, [*gpt, "--data", self.path("missing.txt")], "missing.txt")
        with open(self.path("text.txt"), "w", encoding="utf-8") as file:
            file.write("some text")
        self.refused(2, [*gpt, "--data", self.path("text.tx")], "text.tx", "did you mean", "text.txt")
        open(self.path("empty.txt"), "w", encoding="utf-8").close()
        self.refused(2, [*gpt, "--data", self.path("empty.txt")], "empty.txt", "empty")
        self.refused(2, [*gpt, "--data", self.folder.name], "directory")
        open(self.path("half.idx"), "w", encoding="utf-8").close()
        self.refused(2, [*gpt, "--data", self.path("half")], "half.idx", "empty")

    def test_weights_and_token_files(self):
        gpt = ["run", "gpt_step", "--ranks", "1"]
        text = self.path("text.safetensors")
        with open(text, "w", encoding="utf-8") as file:
            file.write("not a header, nor tensors")
        self.refused(2, [*gpt, "--load", text], "text.safetensors", "length of its header")
        self.refused(2, [*gpt, "--load", text[:-1]], "did you mean", "text.safetensors")
        self.refused(2, [*gpt, "--save", self.path("w.safetensors")], "exactly one case of gpt_step")
        self.refused(2, ["run", "barrier", "--save", text], "exactly one case of gpt_step", "0 are")
        self.refused(2, ["run", "barrier", "--load", text], "text.safetensors")
        self.refused(2, ["data", text], "--out")
        self.refused(2, ["data", text, "--out", self.path("no/pair")], "no/pair.bin")
        self.refused(2, ["data", self.path("text"), "--out", self.path("pair")], "cannot read")

    def test_traffic_files(self):
        traffic = ["run", "all_to_all_v", "--traffic"]
        self.refused(2, [*traffic, "skewd"], "'skewd'", "'skewed'")
        self.refused(2, [*traffic, self.path("missing.txt")], "missing.txt")
        with open(self.path("traffic.txt"), "w", encoding="utf-8") as file:
            file.write("# bytes\n0 64\n8 0\n")
        self.refused(2, [*traffic, self.path("traffic.txt"), "--ranks", "3"], "of 2 ranks, not of 3")
        self.refused(2, [*traffic, self.path("traffic.txt"), "--bytes", "8"], "64 bytes", "not 8")
        with open(self.path("bad.txt"), "w", encoding="utf-8") as file:
            file.write("1 2\n3 x\n")
        self.refused(2, [*traffic, self.path("bad.txt")], "bad.txt, line 2", "'x'")
        self.refused(2, ["collective", "alltoallv", "--ranks", "2", "--traffic", self.path("bad.txt")],
                     "bad.txt, line 2", "'x'")

    def test_configurations(self):
        with open(self.path("ds_config.json"), "w", encoding="utf-8") as file:
            file.write('{"train_batch_size": 6, "zero_optimization": {"stge": 2}}')
        plan = ["plan", "--config", self.path("ds_config.json"), "--gpus", "4"]
        self.refused(2, plan, "ds_config.json", "zero_optimization.stge", "'zero_optimization.stage'")
        self.refused(2, [*plan, "--ignore-unknown-keys"], "train_batch_size 6", "data-parallel size 4")
        self.refused(2, ["plan", "--gpus", "4"], "no model")
        self.refused(2, ["plan", "--hiden-size", "64"], "'--hidden-size'")
        self.refused(2, ["plan", "--confg", "x"], "'--config'")
        self.refused(2, ["plan", "--parameters", "7B", "--json", self.path("no/plan.json")], "no/plan.json")
        self.refused(2, ["plan", "--parameters", "7 billion"], "7 billion", "7B")
        self.refused(2, ["plan", "--megatron-arguments", self.path("missing")], "missing")

    def test_near_ranks_divide_all(self):
        self.refused(2, ["run", "all_reduce", "--inner", "3", "--ranks", "8", "--algorithm", "mesh"],
                     "inner 3 does not divide 8 ranks")

    def test_output_folders(self):
        blocked = self.path("a_file")
        open(blocked, "w", encoding="utf-8").close()
        small = ["run", "all_reduce", "--ranks", "1", "--bytes", "8"]
        self.refused(2, [*small, "--out", blocked], "a_file")
        self.refused(2, [*small, "--out", "/proc/shardmark"], "/proc/shardmark")

    def test_what_this_machine_lacks(self):
        self.refused(3, ["run", "all_reduce"], os.path.basename(LAUNCHER[0]), env={"PATH": "/nonexistent"})
        if not os.path.exists("/dev/nvidia0"):
            self.refused(3, ["run", "gemm", "--ranks", "1", "--device", "cuda"], "cuda")

    def test_reports_of_no_run(self):
        self.refused(2, ["report", self.path("missing")], "missing")
        os.mkdir(self.path("torn"))
        with open(self.path("torn/run.json"), "w", encoding="utf-8") as file:
            file.write('{"context": {')
        self.refused(2, ["report", self.path("torn")], "run.json")


class GoodRun(TemporaryFolder):
    def test_a_plan_is_printed_and_written(self):
        with open(self.path("ds_config.json"), "w", encoding="utf-8") as file:
            file.write('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}')
        done = shardmark("plan", "--config", self.path("ds_config.json"), "--model", "gpt2_1558m", "--gpus", "64",
                         "--json", self.path("plan.json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1557611200 parameters", done.stdout)
        with open(self.path("plan.json"), encoding="utf-8") as file:
            plan = json.load(file)
        asked = [row for row in plan["rows"] if row["asked_for"] and row["counting"] == "paper"]
        self.assertEqual(asked[0]["gpu_bytes"]["optimizer"], 12 * plan["parameters_of_rank"] / 64)
        claims = shardmark("plan", "--claims")
        self.assertEqual(claims.returncode, 0, claims.stderr)
        self.assertRegex(claims.stdout, r"fails +1.3e12 parameters on 32 GPUs")

    def test_a_text_becomes_a_pair(self):
        with open(self.path("text"), "w", encoding="utf-8") as file:
            file.write("one\n\ntwo\n")
        done = shardmark("data", self.path("text"), "--out", self.path("pair"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 documents, 9 tokens", done.stdout)
        self.assertEqual(os.path.getsize(self.path("pair.bin")), 9)
        self.assertEqual(os.path.getsize(self.path("pair.idx")), 34 + 2 * (4 + 8) + 3 * 8)

    def test_a_run_is_accepted_and_complete(self):
        out = self.path("run")
        done = shardmark("run", "all_reduce", "--ranks", "2", "--bytes", "8,32KiB", "--max-seconds", "0.05", "--out", out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"ACCEPTED: \d+ passed, 0 failed, 0 skipped")
        self.assertIn(os.path.join(out, "report.html"), done.stdout)
        run = read_run(out)
        self.assertEqual(run["context"]["status"], "complete")
        expected = sum(int(case["samples"]) * 2 * 8 for case in run["benchmarks"])
        self.assertEqual(os.path.getsize(os.path.join(out, "samples.bin")), expected)
        for name in ["environment.json", "junit.xml", "report.html"]:
            self.assertGreater(os.path.getsize(os.path.join(out, name)), 0)

    def test_large_buffers_over_mpi(self):
        # A rank that has all it needs sleeps outside MPI while a peer still waits for its own sends.
        done = shardmark("run", "all_reduce", "all_gather", "--ranks", "3", "--transport", "mpi", "--algorithm", "ring",
                         "--bytes", "8MiB,20000003", "--dtype", "float", "--max-seconds", "0.1", "--timeout", "10", "--out", self.path("run"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_google_benchmarks_flags(self):
        listed = shardmark("run", "all_gather", "--ranks", "2", "--benchmark_list_tests", "--benchmark_filter=algorithm:ring.*bytes:8$",
                           "--out", self.path("listed"))
        self.assertEqual(listed.returncode, 0, listed.stderr)
        names = listed.stdout.split()
        self.assertTrue(names)
        self.assertTrue(all("algorithm:ring" in name for name in names), names)
        copy = self.path("google.json")
        done = shardmark("run", "all_gather", "--ranks", "2", "--transport", "shared_memory", "--dtype", "float",
                         "--bytes", "8", "--algorithm", "ring", "--benchmark_repetitions=2", f"--benchmark_out={copy}",
                         "--max-seconds", "0.05", "--out", self.path("run"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(read_run(self.path("run"))["benchmarks"]), 2)
        with open(copy, encoding="utf-8") as file:
            self.assertIn("benchmarks", json.load(file))

    def test_ranks_that_were_not_given_are_skipped_aloud(self):
        done = subprocess.run([*LAUNCHER, "-n", "2", PROGRAM, "run", "all_gather", "--ranks", "2,4", "--bytes", "8", "--dtype",
                               "float", "--transport", "shared_memory", "--max-seconds", "0.05", "--out", self.path("run")],
                              capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        verdicts = {case["case"]["ranks"]: case for case in read_run(self.path("run"))["benchmarks"]}
        self.assertEqual(verdicts["2"]["verdict"], "pass")
        self.assertEqual(verdicts["4"]["verdict"], "skipped")
        self.assertIn("4", verdicts["4"]["reason"])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
