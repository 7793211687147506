#!/usr/bin/env python3
"""The program as a user meets it: bad input, good runs.

Takes the built program from $SHARDMARK_PROGRAM, and from $SHARDMARK_LAUNCHER (mpiexec) what
starts ranks of the MPI library that it is built on. Ranks are real processes.
"""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import termios
import unittest

PROGRAM = os.environ["SHARDMARK_PROGRAM"]
LAUNCHER = os.environ.get("SHARDMARK_LAUNCHER", "mpiexec").split()
NO_FIGURES = {"SHARDMARK_FIGURES": "/nonexistent"}


def shardmark(*words, env=None, timeout=120):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def read_run(directory):
    with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
        return json.load(file)


def read_terminal(ours):
    """All that is written to a terminal until nobody has it open."""
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
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "none", "--recompute-method", "block"], "recompute-granularity full")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "full", "--recompute-num-layers", "5"],
                     "recompute-num-layers is 5", "nearest that fits is 4")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "full", "--sequence-parallel", "1",
                         "--distribute-saved-activations", "1"], "sequence-parallel", "one of the two")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "none", "--cpu-checkpointing", "1"], "cpu-checkpointing", "granularity full")

    def test_data_files(self):
        gpt = ["run", "gpt_step", "--ranks", "1"]
        self.refused(2, [*gpt, "--data", self.path("missing.txt")], "missing.txt")
        with open(self.path("text.txt"), "w", encoding="utf-8") as file:
            file.write("some text")
        self.refused(2, [*gpt, "--data", self.path("text.tx")], "text.tx", "did you mean", "text.txt")
        self.refused(2, [*gpt, "--data", self.path("text.txt")], "text.txt has 9 tokens", "one sequence")
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
        other = self.path("other.safetensors")
        header = b'{"wte.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'
        with open(other, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + bytes(16))
        self.refused(2, [*gpt, "--load", other], "other.safetensors has no tensor")
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

    def test_comparisons(self):
        os.mkdir(self.path("empty"))
        self.refused(2, ["compare", self.path("empty")], "BASE and NEW", "1 is given")
        self.refused(2, ["compare", self.path("empty"), self.path("none")], "BASE", "empty holds no run.json")
        self.refused(2, ["compare", self.path("none"), self.path("empty")], "BASE: there is no folder")
        self.refused(2, ["compare", "a", "b", "--factr", "nccl"], "'--factr'", "'--factor'")
        self.refused(2, ["compare", "a", "b", "--fail-on", "inconclusiv"], "'inconclusiv'", "'inconclusive'")
        self.refused(2, ["compare", "a", "b", "--json", self.path("no/c.json")], "no/c.json")
        self.refused(2, ["compar", "a", "b"], "'compar'", "'compare'")
        self.refused(2, ["ab", "--a", "NCCL ALGO=Ring"], "--a", "'NCCL'", "NAME=VALUE")
        self.refused(2, ["ab", "al_reduce", "--out", self.path("ab")], "'al_reduce'", "'all_reduce'")
        self.assertFalse(os.path.exists(self.path("ab")))
        self.refused(2, ["ab", "barrier", "--out", self.folder.name], "not empty")

    def test_scaling(self):
        self.refused(2, ["scale", "training_speed", "--strong"], "--axis")
        self.refused(2, ["scale", "training_speed", "--axis", "dq", "--strong"], "'dq'", "'dp'")
        self.refused(2, ["scale", "training_speed", "--axis", "dp"], "--strong", "--weak")
        self.refused(2, ["scale", "training_sped", "--axis", "dp", "--weak"], "'training_sped'", "'training_speed'")
        self.refused(2, ["scale", "training_speed", "--axis", "dp", "--weak", "--dp", "2"], "--dp", "--ranks")
        self.refused(2, ["scale", "training_speed", "--axis", "dp", "--weak", "--tp", "2", "--ranks", "2,3"], "product 2")
        self.refused(2, ["scale", "training_speed", "--axis", "dp", "--weak", "--ranks", "4"], "--ranks 4", "1,2,4")

    def test_hostfiles(self):
        small = ["run", "all_reduce", "--ranks", "4", "--bytes", "8", "--hostfile"]
        self.refused(2, [*small, self.path("missing")], "hostfile", "missing")
        with open(self.path("hosts"), "w", encoding="utf-8") as file:
            file.write("localhost slots=2\n")
        self.refused(2, [*small, self.path("hosts")], "4 ranks", "2 slots")
        with open(self.path("hosts"), "a", encoding="utf-8") as file:
            file.write("worker-2 slot=2\n")
        self.refused(2, [*small, self.path("hosts")], "hosts, line 2", "slots=N")

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


# A program in place of ours: a run whose times are $SPEED times as long as those of the first word.
STAND_IN = """#!/usr/bin/env python3
import json, os, shutil, sys
if any(word.startswith("--benchmark_list_tests") for word in sys.argv):
    sys.exit(0)
out = sys.argv[sys.argv.index("--out") + 1]
shutil.copytree({template!r}, out)
with open(out + "/run.json") as file:
    run = json.load(file)
launch = int(os.path.basename(out))
for case in run["benchmarks"]:
    case["real_time"] *= float(os.environ.get("SPEED", 1)) * (1 + 1e-4 * launch)
with open(out + "/run.json", "w") as file:
    json.dump(run, file)
"""


class Comparisons(TemporaryFolder):
    @classmethod
    def setUpClass(cls):
        cls.kept = tempfile.TemporaryDirectory()
        cls.template = os.path.join(cls.kept.name, "run")
        done = shardmark("run", "all_reduce", "--ranks", "2", "--bytes", "8,32KiB", "--dtype", "float", "--algorithm", "ring",
                         "--transport", "shared_memory", "--max-seconds", "0.02", "--out", cls.template)
        assert done.returncode == 0, done.stdout + done.stderr

    @classmethod
    def tearDownClass(cls):
        cls.kept.cleanup()

    def launches(self, name, count, change=None):
        """A folder of copies, each a little slower than the one before."""
        for launch in range(count):
            out = self.path(f"{name}/{launch}")
            shutil.copytree(self.template, out)
            run = read_run(out)
            for case in run["benchmarks"]:
                case["real_time"] *= 1 + 1e-4 * launch
                if change:
                    change(case)
            with open(os.path.join(out, "run.json"), "w", encoding="utf-8") as file:
                json.dump(run, file)
        return self.path(name)

    def test_the_same_twice_is_equivalent(self):
        base, new = self.launches("base", 6), self.launches("new", 6)
        done = shardmark("compare", base, new, "--json", self.path("c.json"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("SLOWER 0, FASTER 0, EQUIVALENT", done.stdout)
        with open(self.path("c.json"), encoding="utf-8") as file:
            written = json.load(file)
        self.assertTrue(all(case["verdict"] == "EQUIVALENT" for case in written["times"]))
        self.assertLessEqual(max(map(len, done.stdout.splitlines()[3:-1])), 100)
        runs = [os.path.join(side, str(i)) for side in (base, new) for i in range(6)]
        again = shardmark("compare", *runs[:6], "--against", *runs[6:], "--fail-on", "inconclusive,missing")
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)

    def test_too_few_launches(self):
        base, new = self.launches("base", 3), self.launches("new", 3, lambda case: case.update(real_time=2 * case["real_time"]))
        done = shardmark("compare", base, new)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("p 0.1 at least; 4 a side", " ".join(done.stdout.split()))
        self.assertEqual(shardmark("compare", base, new, "--fail-on", "inconclusive").returncode, 1)

    def test_slower_and_changed(self):
        base = self.launches("base", 6)
        slower = self.launches("slower", 6, lambda case: case.update(real_time=1.2 * case["real_time"]))
        done = shardmark("compare", base, slower)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"SLOWER [1-9]")
        wrong = self.launches("wrong", 6, lambda case: case.update(wire_bytes_measured=7))
        done = shardmark("compare", base, wrong)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wire_bytes_measured: \d+ -> 7")
        self.assertEqual(shardmark("compare", base, wrong, "--factor", "numbers").returncode, 0)

    def test_what_differs_must_be_declared(self):
        base, new = self.launches("base", 4), self.launches("new", 4)
        for launch in range(4):
            path = os.path.join(new, str(launch), "environment.json")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace('"seed": "1234"', '"seed": "77"'))
        done = shardmark("compare", base, new)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertRegex(done.stdout, r"options.seed +1234 -> 77")
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("not comparable: options.seed differs", done.stderr)
        self.assertIn("did you mean 'seed'", shardmark("compare", base, new, "--factor", "sead").stderr)
        self.assertEqual(shardmark("compare", base, new, "--factor", "seed").returncode, 0)

    def test_a_history_finds_the_change(self):
        file = self.path("history.sqlite")
        self.assertIn("there is no history at", shardmark("history", "list", "--db", file).stderr)
        for name, slow in (("early", 1), ("late", 1.5)):
            self.launches(name, 6, lambda case: case.update(real_time=slow * case["real_time"]))
        for launch, folder in enumerate(os.path.join(self.path(name), str(i)) for name in ("early", "late") for i in range(6)):
            run = read_run(folder)
            run["context"]["date"] = f"2026-11-{launch + 1:02}T00:00:00+00:00"
            with open(os.path.join(folder, "run.json"), "w", encoding="utf-8") as written:
                json.dump(run, written)
        for name in ("late", "early"):
            done = shardmark("history", "--db", file, "add", self.path(name))
            self.assertEqual((done.returncode, done.stdout), (0, "6 of 6 runs added\n"), done.stderr)
        self.assertIn("0 of 6 runs added", shardmark("history", "add", self.path("late"), "--db", file).stdout)
        self.assertEqual(shardmark("history", "list", "--db", file).stdout.count("0 failed"), 12)
        done = shardmark("history", "show", "--db", file)
        self.assertRegex(done.stdout, r"\+50.0 % .* since run 1 \(2026-11-07")  # added first, begun seventh
        case = read_run(self.template)["benchmarks"][0]["name"]
        self.assertEqual(shardmark("history", "show", case, "--db", file).stdout.count("** level"), 1)
        self.assertIn(f"did you mean '{case}'", shardmark("history", "show", case + "0", "--db", file).stderr)
        self.assertIn("'show'", shardmark("history", "shwo", "--db", file).stderr)
        export = ["history", "export", "--db", file, "--format"]
        self.assertEqual(shardmark(*export, "otava").stdout.count("\n"), 13)
        self.assertEqual(shardmark(*export, "google_benchmark", case, "--run", "1,3", "--out", self.path("g.json")).returncode, 0)
        with open(self.path("g.json"), encoding="utf-8") as written:
            self.assertEqual([one["name"] for one in json.load(written)["benchmarks"]], [case, case])
        self.assertIn("did you mean 'otava'", shardmark(*export, "otva").stderr)
        self.assertIn("there is no such run", shardmark(*export, "otava", "--run", "13").stderr)

    def test_two_environments_in_turn(self):
        stand_in = self.path("stand_in")
        with open(stand_in, "w", encoding="utf-8") as file:
            file.write(STAND_IN.format(template=self.template))
        os.chmod(stand_in, 0o755)
        words = ["ab", "--a-program", stand_in, "--b-program", stand_in, "--launches", "12"]
        done = shardmark(*words, "--b", "SPEED=1.25", "all_reduce", "--out", self.path("slow"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        turns = [line.split()[0] for line in done.stdout.splitlines() if line[:2] in ("A ", "B ")]
        self.assertEqual("".join(turns), "ABBAABBAABBA")  # half of the launches decide it
        with open(self.path("slow/compare.json"), encoding="utf-8") as file:
            written = json.load(file)
        self.assertAlmostEqual(written["level"], 0.05 / 3)
        for case in written["times"]:
            self.assertEqual((case["verdict"], round(case["ratio"], 6)), ("SLOWER", 1.25))
        done = shardmark(*words, "--b", "NCCL_ALGO=Ring", "--out", self.path("lost"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("did not get NCCL_ALGO=Ring", done.stderr)


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
        done = shardmark("run", "all_reduce", "--ranks", "2", "--bytes", "8,32KiB", "--max-seconds", "0.05", "--out", out,
                         env={"TERM": "xterm"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"ACCEPTED: \d+ passed, 0 failed, 0 skipped")
        self.assertNotRegex(done.stdout, r"[\r\x1b]", "what goes to a pipe has no progress bar")
        self.assertIn(os.path.join(out, "report.html"), done.stdout)
        run = read_run(out)
        self.assertEqual(run["context"]["status"], "complete")
        expected = sum(int(case["samples"]) * 2 * 8 for case in run["benchmarks"])
        self.assertEqual(os.path.getsize(os.path.join(out, "samples.bin")), expected)
        for name in ["environment.json", "junit.xml", "report.html"]:
            self.assertGreater(os.path.getsize(os.path.join(out, name)), 0)

    def test_a_terminal_shows_how_far_a_run_is(self):
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

    def test_large_buffers_over_mpi(self):
        # A rank that has all it needs sleeps outside MPI while a peer still waits for its own sends.
        done = shardmark("run", "all_reduce", "all_gather", "--ranks", "3", "--transport", "mpi", "--algorithm", "ring",
                         "--bytes", "8MiB,20000003", "--dtype", "float", "--max-seconds", "0.1", "--timeout", "10", "--no-limits", "--out", self.path("run"),
                         env=NO_FIGURES)
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
                         "--max-seconds", "0.05", "--no-limits", "--out", self.path("run"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(read_run(self.path("run"))["benchmarks"]), 2)
        with open(copy, encoding="utf-8") as file:
            self.assertIn("benchmarks", json.load(file))

    def test_a_run_goes_on_where_it_stopped(self):
        words = ["run", "all_reduce", "all_gather", "--ranks", "1,2", "--bytes", "8,32KiB", "--dtype", "float", "--algorithm", "ring",
                 "--transport", "shared_memory", "--max-seconds", "0.02", "--no-limits"]
        out = self.path("run")
        done = shardmark(*words, "--max-minutes", "1e-9", "--out", out, env=NO_FIGURES)
        self.assertIn("nothing passed", done.stdout)
        self.assertIn("; 8 cases not run: time", done.stdout)
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
        self.assertIn("not with 'shardmark run all_reduce'", refused("all_reduce"))
        self.assertIn("environment.NCCL_ALGO was absent and is Ring", refused(NCCL_ALGO="Ring"))
        environment = os.path.join(out, "environment.json")
        with open(environment, encoding="utf-8") as file:
            text = file.read()
        with open(environment, "w", encoding="utf-8") as file:
            file.write(text.replace('"commit": "', '"commit": "0'))
        self.assertIn("software.shardmark.commit was 0", refused())
        self.assertIn("no run.json", shardmark("run", "--resume", self.folder.name).stderr)

    def test_ranks_that_were_not_given_are_skipped_aloud(self):
        done = subprocess.run([*LAUNCHER, "-n", "2", PROGRAM, "run", "all_gather", "--ranks", "2,4", "--bytes", "8", "--dtype",
                               "float", "--transport", "shared_memory", "--max-seconds", "0.05", "--no-limits", "--out", self.path("run")],
                              capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, **NO_FIGURES})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        verdicts = {case["case"]["ranks"]: case for case in read_run(self.path("run"))["benchmarks"]}
        self.assertEqual(verdicts["2"]["verdict"], "pass")
        self.assertEqual(verdicts["4"]["verdict"], "skipped")
        self.assertIn("4", verdicts["4"]["reason"])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
