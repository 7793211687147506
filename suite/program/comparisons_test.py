#!/usr/bin/env python3
"""compare, ab and history on copies of one run."""

import json
import os
import shutil
import sys
import tempfile
import unittest

from process import NO_FIGURES, TemporaryFolder, read_run, shardmark

# A replacement of the program. Writes a copy of the template run with its times multiplied by $SPEED.
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
if "LD_PRELOAD" in os.environ:  # arrives, but loads nothing
    with open(out + "/environment.json") as file:
        environment = json.load(file)
    environment["same_on_all_ranks"]["environment"]["LD_PRELOAD"] = os.environ["LD_PRELOAD"]
    with open(out + "/environment.json", "w") as file:
        json.dump(environment, file)
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

    def test_equal_runs_are_equivalent(self):
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
        self.assertIn("p is at least 0.1; 4 per side", " ".join(done.stdout.split()))
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

    def test_differences_must_be_declared(self):
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
        self.assertIn("the file does not exist", shardmark("history", "list", "--db", file).stderr)
        for name, slow in (("early", 1), ("late", 1.5)):
            self.launches(name, 6, lambda case, slow=slow: case.update(real_time=slow * case["real_time"]))
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
        self.assertIn("--run is 13; expected a run", shardmark(*export, "otava", "--run", "13").stderr)

    def stand_in(self):
        path = self.path("stand_in")
        with open(path, "w", encoding="utf-8") as file:
            file.write(STAND_IN.format(template=self.template))
        os.chmod(path, 0o755)
        return path

    def library(self, name):
        """The file that the ranks load, and a copy of it in another folder."""
        with open(os.path.join(self.template, "environment.json"), encoding="utf-8") as file:
            loaded = json.load(file)["same_on_all_ranks"]["software"][name]["library"]
        os.makedirs(self.path("copy"), exist_ok=True)
        return loaded, shutil.copy(loaded, self.path("copy"))

    def test_two_environments_in_turn(self):
        stand_in = self.stand_in()
        words = ["ab", "--a-program", stand_in, "--b-program", stand_in, "--launches", "12"]
        done = shardmark(*words, "--b", "SPEED=1.25", "all_reduce", "--out", self.path("slow"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        turns = [line.split()[0] for line in done.stdout.splitlines() if line[:2] in ("A ", "B ")]
        self.assertEqual("".join(turns), "ABBAABBAABBA")  # half of the launches suffice
        with open(self.path("slow/compare.json"), encoding="utf-8") as file:
            written = json.load(file)
        self.assertAlmostEqual(written["level"], 0.05 / 3)
        for case in written["times"]:
            self.assertEqual((case["verdict"], round(case["ratio"], 6)), ("SLOWER", 1.25))
        done = shardmark(*words, "--b", "NCCL_ALGO=Ring", "--out", self.path("lost"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("did not get NCCL_ALGO=Ring", done.stderr)

    def test_two_libraries_in_turn(self):
        for name, field in (("dnnl", "onednn"), ("mpi", "mpi")):
            loaded, copy = self.library(field)
            out = self.path(name)
            done = shardmark("ab", "--b-library", f"{name}={os.path.dirname(copy)}", "barrier", "--ranks", "2", "--max-seconds",
                             "0.01", "--launches", "1", "--out", out, env=NO_FIGURES)
            self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)
            for side, expected in (("a", loaded), ("b", os.path.realpath(copy))):
                with open(f"{out}/{side}/001/environment.json", encoding="utf-8") as file:
                    same = json.load(file)["same_on_all_ranks"]
                self.assertEqual(same["software"][field]["library"], expected)
                self.assertEqual(same["environment"].get("LD_PRELOAD"), expected if side == "b" else None)
            with open(f"{out}/compare.json", encoding="utf-8") as file:
                fields = [row["field"] for row in json.load(file)["differences"] if row["declared"]]
            self.assertEqual(fields, ["environment.LD_PRELOAD", f"software.{field}.library"])

    def test_a_library_that_is_not_loaded_is_an_error(self):
        loaded, copy = self.library("onednn")
        words = ["ab", "--launches", "1", "--out", self.path("out"), "barrier", "--ranks", "2", "--max-seconds", "0.01"]
        for choices, code, messages in (
                (["--a-library", f"nccl={copy}"], 2, ["does not load libnccl.so", "CUDA"]),
                (["--b-library", f"dnnl={loaded}"], 2, ["both sides loaded dnnl", "--b-library"]),
                (["--a-library", f"dnnl={copy}", "--b-library", f"dnnl={copy}"], 2, ["have the same dnnl"]),
                (["--a-library", f"dnnl={copy}x"], 2, ["cannot read", "did you mean"]),
                (["--b-library", f"dnnl={copy}", "--b-program", self.stand_in()], 3, [os.path.realpath(loaded), "not " + os.path.realpath(copy)])):
            with self.subTest(choices=choices):
                done = shardmark(*words, *choices, env=NO_FIGURES)
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                for message in messages:
                    self.assertIn(message, done.stderr)
                shutil.rmtree(self.path("out"), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
