#!/usr/bin/env python3
"""Good runs of the program. Ranks are real processes."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
import unittest

from process import LAUNCHER, NO_FIGURES, PROGRAM, TemporaryFolder, one_case, read_run, shardmark


def read_terminal(ours):
    """Returns all output to a terminal until no process has it open."""
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            piece = b""
        if not piece:
            os.close(ours)
            return seen.decode()
        seen += piece


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
        self.assertRegex(claims.stdout, r"6 fails +1.3e12 parameters on 32 GPUs")
        self.assertNotIn("efficiency", claims.stdout)  # not about memory
        claims = shardmark("predict", "--claims")
        self.assertEqual(claims.returncode, 0, claims.stderr)
        self.assertEqual([int(number) for number in re.findall(r"^ *(\d+) (?:holds|fails|open) ", claims.stdout, re.MULTILINE)],
                         list(range(1, 111)))

    def test_a_step_is_predicted_and_written(self):
        done = shardmark("predict", "--model", "gpt3_175b", "--gpus", "1024", "--bf16", "--tp", "8", "--pp", "8",
                         "--micro-batch-size", "1", "--global-batch-size", "1536", "--cluster", "dgx_a100", "--explain",
                         "--json", self.path("step.json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"step +[0-9.]+ s \([0-9.]+ to [0-9.]+ s")
        self.assertIn("gpu.gemm_fraction", done.stdout)
        with open(self.path("step.json"), encoding="utf-8") as file:
            step = json.load(file)
        self.assertAlmostEqual(sum(step["breakdown_s"].values()), step["step_s"], places=6)
        self.assertLess(step["interval_s"][0], step["step_s"])
        self.assertEqual([group["group"] for group in step["groups"]], ["tp", "dp", "pp", "embedding"])

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
        done = shardmark("run", "all_reduce", "--ranks", "2", "--bytes", "8,32KiB", "--max-seconds", "0.05", "--out", out,
                         env={"TERM": "xterm"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"ACCEPTED: \d+ passed, 0 failed, 0 skipped")
        self.assertNotRegex(done.stdout, r"[\r\x1b]", "what goes to a pipe has no progress bar")
        self.assertIn(os.path.join(out, "report.html"), done.stdout)
        self.assertNotIn("figures: missing", done.stdout)
        again = shardmark("report", out, env=NO_FIGURES)
        self.assertRegex(again.stdout, r"report\.html\nfigures: missing \(.+\)\n$")
        run = read_run(out)
        self.assertEqual(run["context"]["status"], "complete")
        expected = sum(int(case["samples"]) * 2 * 8 for case in run["benchmarks"])
        self.assertEqual(os.path.getsize(os.path.join(out, "samples.bin")), expected)
        for name in ["environment.json", "junit.xml", "report.html"]:
            self.assertGreater(os.path.getsize(os.path.join(out, name)), 0)

    def test_all_cores_draw_the_figures(self):
        script = self.path("draw.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import os, sys\nopen(sys.argv[1] + '/cores', 'w').write(str(sorted(os.sched_getaffinity(0))))\n")
        # Each rank is bound to its cores while it measures.
        done = shardmark("run", "barrier", "--ranks", "2", "--algorithm", "dissemination", "--transport", "shared_memory",
                         "--max-seconds", "0.01", "--no-limits", "--out", self.path("run"), env={"SHARDMARK_FIGURES": script})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.path("run/cores"), encoding="utf-8") as file:
            self.assertEqual(file.read(), str(sorted(os.sched_getaffinity(0))))

    def test_a_terminal_shows_progress(self):
        ours, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (40, 90))
        with subprocess.Popen([PROGRAM, "run", "barrier", "--ranks", "2", "--max-seconds", "0.05", "--no-limits", "--out", self.path("seen")],
                              stdout=terminal, stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}):
            os.close(terminal)
            seen = read_terminal(ours)
        bars = re.findall(r"\r(\[[#.]+\][^\r\x1b]*)", seen)
        self.assertTrue(bars, seen)
        self.assertLess(max(map(len, bars)), 90)
        self.assertIn("ACCEPTED", seen)

    def test_hosts_of_a_file(self):
        with open(self.path("hosts"), "w", encoding="utf-8") as file:
            file.write("localhost slots=2\n")
        done = shardmark("run", "all_reduce", "--ranks", "2", "--bytes", "8", "--dtype", "float", "--transport", "shared_memory",
                         "--no-limits", "--max-seconds", "0.05", "--hostfile", self.path("hosts"), "--out", self.path("run"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_all_ranks_of_a_launch_work(self):
        with open(self.path("hosts"), "w", encoding="utf-8") as file:
            file.write("one slots=2\ntwo slots=3\n")
        units = ("gemm", "memory_bandwidth", "optimizer_step", "link_matrix", "barrier", "all_reduce", "all_to_all")
        hosts = ["--hostfile", self.path("hosts"), "--benchmark_list_tests"]
        listed = shardmark("run", *units, *hosts).stdout
        for unit in units:
            self.assertRegex(listed, rf"(?m)^{unit}/.*\branks:5\b")
        self.assertNotIn("ranks:5", shardmark("run", *units, "--benchmark_list_tests").stdout)
        self.assertNotIn("ranks:5", shardmark("run", *units, "--ranks", "2", *hosts).stdout)
        # MPI knows how many ranks a user's launcher has started.
        done = subprocess.run([*LAUNCHER, "-n", "9", PROGRAM, "run", "barrier", "--algorithm", "dissemination", "--transport", "shared_memory",
                               "--max-seconds", "0.01", "--no-limits", "--out", self.path("run")],
                              capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, **NO_FIGURES})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(any("ranks:9" in case["name"] for case in read_run(self.path("run"))["benchmarks"]))

    def test_large_buffers_over_mpi(self):
        # A rank that has received all data sleeps outside MPI, while a peer still waits for its own sends.
        done = shardmark("run", "all_reduce", "all_gather", "--ranks", "3", "--transport", "mpi", "--algorithm", "ring",
                         "--bytes", "8MiB,20000003", "--dtype", "float", "--max-seconds", "0.1", "--timeout", "10", "--no-limits", "--out", self.path("run"),
                         env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_step_by_the_collectives_of_mpi(self):
        # ZeRO stage 1 reduces and gathers in place. MPI counts no bytes, so the oracle of volume does not rule.
        words = ["--ranks", "4", "--tp", "2", "--pp", "1", "--dp", "2", "--transport", "mpi", "--sequence-parallel", "on",
                 "--zero-stage", "0,1", "--global-batch-size", "4", "--tp-algorithm", "library",
                 "--dp-algorithm", "all_reduce=library,reduce_scatter=library,all_gather=library"]
        done = shardmark("run", "gpt_step", *one_case("gpt_step", words), "--max-seconds", "0.05", "--no-limits",
                         "--out", self.path("run"), env=NO_FIGURES, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        cases = read_run(self.path("run"))["benchmarks"]
        self.assertEqual([case["case"]["zero-stage"] for case in cases], ["0", "1"])
        for case in cases:
            self.assertEqual(case["verdict"], "pass", case)
            self.assertEqual({case["oracles"][oracle]["verdict"] for oracle in ("numerics", "memory", "schedule", "determinism")}, {"pass"})
            self.assertEqual(case["oracles"]["volume"]["verdict"], "skipped")
            self.assertIn("the library does not count the bytes", case["oracles"]["volume"]["text"])
            self.assertEqual(case.get("wire_bytes_measured", 0), 0, "a plan of ours ran")

    def test_google_benchmarks_flags(self):
        listed = shardmark("run", "all_gather", "--ranks", "2", "--benchmark_list_tests", "--benchmark_filter=algorithm:ring.*bytes:8$",
                           "--out", self.path("listed"))
        self.assertEqual(listed.returncode, 0, listed.stderr)
        names = listed.stdout.split()
        self.assertTrue(names)
        # The filter matches names with all axes. ring is the default, so names do not show it.
        self.assertTrue(all("algorithm" not in name and name.endswith("bytes:8") for name in names), names)
        short = shardmark("run", "all_gather", "--ranks", "2", "--benchmark_list_tests", "--filter", f"^{names[0]}$")
        self.assertEqual(short.stdout.split(), names[:1])
        self.assertEqual(shardmark("run", names[0], "--benchmark_list_tests").stdout.split(), names[:1])
        copy = self.path("google.json")
        done = shardmark("run", "all_gather", "--ranks", "2", "--transport", "shared_memory", "--dtype", "float",
                         "--bytes", "8", "--algorithm", "ring", "--benchmark_repetitions=2", f"--benchmark_out={copy}",
                         "--max-seconds", "0.05", "--no-limits", "--out", self.path("run"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(read_run(self.path("run"))["benchmarks"]), 2)
        with open(copy, encoding="utf-8") as file:
            self.assertIn("benchmarks", json.load(file))

    def test_a_stopped_run_is_resumed(self):
        words = ["run", "all_reduce", "all_gather", "--ranks", "1,2", "--bytes", "8,32KiB", "--dtype", "float", "--algorithm", "ring",
                 "--transport", "shared_memory", "--max-seconds", "0.02", "--no-limits"]
        out = self.path("run")
        done = shardmark(*words, "--max-minutes", "1e-9", "--out", out, env=NO_FIGURES)
        self.assertIn("nothing passed", done.stdout)
        self.assertIn("; 8 cases not run (time limit)", done.stdout)
        done = shardmark("run", "--resume", out, "--max-minutes", "10", env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("ACCEPTED: 8 passed, 0 failed, 0 skipped\n", done.stdout)
        run = read_run(out)
        names = [case["name"] for case in run["benchmarks"]]
        self.assertEqual(len(set(names)), 8)
        self.assertEqual([name.split("/")[0] for name in names[:2]], ["all_reduce", "all_gather"], "in turn")
        self.assertEqual(len(run["context"]["resumed"]), 1)
        self.assertNotIn("cases_not_run", run["context"])
        again = subprocess.run([*LAUNCHER, "-n", "2", PROGRAM, "run", "--resume", out], capture_output=True, text=True, timeout=120,
                               stdin=subprocess.DEVNULL, check=False, env={**os.environ, **NO_FIGURES})
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertEqual([case["name"] for case in read_run(out)["benchmarks"]], names)

        def refused(*others, **more):
            done = shardmark("run", *others, "--resume", out, env={**NO_FIGURES, **more})
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            return done.stderr
        self.assertIn("not 'shardmark run all_reduce'", refused("all_reduce"))
        self.assertIn("environment.NCCL_ALGO was absent and is Ring", refused(NCCL_ALGO="Ring"))
        environment = os.path.join(out, "environment.json")
        with open(environment, encoding="utf-8") as file:
            text = file.read()
        with open(environment, "w", encoding="utf-8") as file:
            file.write(text.replace('"commit": "', '"commit": "0'))
        self.assertIn("software.shardmark.commit was 0", refused())
        self.assertIn("no run.json", shardmark("run", "--resume", self.folder.name).stderr)

    def test_cases_with_missing_ranks_are_reported_as_skipped(self):
        done = subprocess.run([*LAUNCHER, "-n", "2", PROGRAM, "run", "all_gather", "--ranks", "2,4", "--bytes", "8", "--dtype",
                               "float", "--transport", "shared_memory", "--max-seconds", "0.05", "--no-limits", "--out", self.path("run")],
                              capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, **NO_FIGURES})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        verdicts = {case["case"]["ranks"]: case for case in read_run(self.path("run"))["benchmarks"]}
        self.assertEqual(verdicts["2"]["verdict"], "pass")
        self.assertEqual(verdicts["4"]["verdict"], "skipped")
        self.assertIn("4", verdicts["4"]["reason"])


class OneCase(unittest.TestCase):
    def test_an_axis_has_the_value_that_is_given_or_meant_or_neutral(self):
        axes = [(["--tp", "--tensor-model-parallel-size"], "1"), (["--dtype"], "bfloat16"), (["--new"], "off"), (["--freeze"], "none")]
        self.assertEqual(one_case("", ["--tp", "2", "--freeze=a*", "--out", "x"], lambda _: axes),
                         ["--tp", "2", "--freeze=a*", "--out", "x", "--dtype", "float", "--new", "off"])

    def test_another_default_does_not_change_a_case(self):
        for default in ("on", "2", "cpu"):
            with self.assertRaisesRegex(AssertionError, f"--new is {default} by default"):
                one_case("", [], lambda _, default=default: [(["--new"], default)])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
