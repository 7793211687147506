"""The Python package: its wheel holds what it needs, reads a run as frames and draws its figures."""
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import synthetic_run  # noqa: E402

MISSING = [name for name in ("pip", "setuptools", "pandas", "matplotlib") if importlib.util.find_spec(name) is None]


@unittest.skipIf(MISSING, f"Python lacks {', '.join(MISSING)}")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.installed = os.path.join(cls.place.name, "installed")
        cls.run_dir = os.path.join(cls.place.name, "run")
        os.mkdir(cls.run_dir)
        cls.document = synthetic_run.document()
        cls.document["benchmarks"][0]["oracles"] = {
            "volume": {"verdict": "pass", "measured": 8, "expected": 8, "text": "tp", "reference": "independent", "rank": 0},
            "memory": {"verdict": "fail", "measured": 9, "expected": 8, "text": "buffers", "reference": "shared", "rank": 1}}
        synthetic_run.write(cls.run_dir, cls.document)
        wheels = os.path.join(cls.place.name, "wheels")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        # The copy keeps setuptools' build folder out of the source tree.
        source = os.path.join(cls.place.name, "python")
        subprocess.run(["cp", "-r", os.path.join(HERE, "python"), source], check=True)
        subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source], check=True)
        cls.wheel, = os.listdir(wheels)
        subprocess.run([*pip, "install", "--no-deps", "--target", cls.installed, os.path.join(wheels, cls.wheel)], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def python(self, *words):
        return subprocess.run([sys.executable, *words], env=os.environ | {"PYTHONPATH": self.installed}, cwd=self.place.name,
                              capture_output=True, text=True, check=False)

    def value(self, expression):
        """The value of an expression of `run` and `shardmark`."""
        ran = self.python("-c", f"import json, shardmark; run = shardmark.read({self.run_dir!r}); print(json.dumps({expression}))")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def test_its_version_is_the_programs(self):
        with open(os.path.join(HERE, "python", "shardmark", "VERSION"), encoding="utf-8") as file:
            version = file.read().strip()
        self.assertEqual(self.value("shardmark.__version__"), version)
        self.assertTrue(self.wheel.startswith(f"shardmark-{version}-"), self.wheel)

    def test_frames_hold_every_launch(self):
        entries = [e for e in self.document["benchmarks"] if e.get("run_type", "iteration") == "iteration"]
        self.assertEqual(self.value("list(run.cases.name)"), [e["name"] for e in entries])
        self.assertEqual(self.value("list(run.cases.verdict)"), [e["verdict"] for e in entries])
        oracles = [(e["name"], oracle) for e in entries for oracle in e.get("oracles", {})]
        self.assertEqual(self.value("list(zip(run.oracles.name, run.oracles.oracle))"), [list(row) for row in oracles])
        self.assertGreater(len(oracles), 1)
        self.assertEqual(self.value("list(run.oracles[run.oracles.verdict == 'fail'].text)"), ["buffers"])
        first = entries[0]
        self.assertEqual(self.value("int(run.cases['axis.ranks'][0])"), int(first["case"]["ranks"]))
        scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[first["time_unit"]]
        self.assertAlmostEqual(self.value("run.cases.seconds[0]"), first["real_time"] * scale, delta=1e-12)

    def test_a_folder_without_a_run_is_named(self):
        ran = self.python("-c", "import shardmark; shardmark.read('/nowhere')")
        self.assertIn("shardmark.drawing.run_json.BadRun: /nowhere/run.json: No such file", ran.stderr)

    def test_the_example_of_the_readme_runs(self):
        with open(os.path.join(HERE, "python", "README.md"), encoding="utf-8") as file:
            example, = re.findall(r"^```python\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)
        ran = self.python("-c", example.replace("results/runs/RUN", self.run_dir))
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("buffers", ran.stdout)

    def test_its_command_draws_the_figures(self):
        ran = self.python(os.path.join(self.installed, "bin", "shardmark-figures"), self.run_dir, "--only", "timeline")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        metadata = json.loads(self.python("-c", "import importlib.metadata, json; print(json.dumps(dict(importlib.metadata"
                                          ".metadata('shardmark'))))").stdout)
        self.assertEqual(metadata["License"], "Apache-2.0")

    def test_it_draws_the_figures(self):
        ran = self.python("-m", "shardmark.figures", self.run_dir, "--only", "timeline")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertTrue(os.listdir(os.path.join(self.run_dir, "figures")))


if __name__ == "__main__":
    unittest.main()
