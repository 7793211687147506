#!/usr/bin/env python3
"""The Debian package: its fields, its files, and the program and the figures run from where they are unpacked."""
import gzip
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SPDX_TOOLS = "spdx-tools==0.8.5"
NEEDED = [tool for tool in ("dpkg-deb", "dpkg-shlibdeps", "cpack") if not shutil.which(tool)]


def output(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}"[-3000:])
    return done.stdout


@unittest.skipIf(NEEDED, f"{', '.join(NEEDED)} is missing: scripts/install --for package")
class DebianPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        output(os.path.join(ROOT, "scripts", "build"), "package", "shardmark")
        output("cpack", "--preset", "deb", "-B", cls.place.name, cwd=ROOT)
        cls.file, = (os.path.join(cls.place.name, name) for name in os.listdir(cls.place.name) if name.endswith(".deb"))
        cls.tree = os.path.join(cls.place.name, "tree")
        output("dpkg-deb", "-x", cls.file, cls.tree)
        cls.program = cls.at("bin/shardmark")
        with open(os.path.join(ROOT, "scripts/python/shardmark/VERSION"), encoding="utf-8") as file:
            cls.version = file.read().strip()

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    @classmethod
    def at(cls, path):
        return os.path.join(cls.tree, "usr", path)

    def test_fields(self):
        self.assertRegex(os.path.basename(self.file), rf"^shardmark_{re.escape(self.version)}-1_\w+\.deb$")
        fields = dict(re.findall(r"^([\w-]+): (.*)$", output("dpkg-deb", "-f", self.file), re.MULTILINE))
        self.assertEqual(fields["Version"], f"{self.version}-1")
        depends = {word.split()[0] for word in fields["Depends"].split(", ")}
        self.assertLessEqual({"libmpich12", "libdnnl2", "libhwloc15", "libc6", "libstdc++6", "mpich", "python3"}, depends)
        self.assertIn("python3-matplotlib", fields["Recommends"])

    def test_files_are_owned_by_root_and_the_same_in_a_second_package(self):
        self.assertNotRegex(output("dpkg-deb", "-c", self.file), r"(?m)^\S+ (?!root/root)")
        second = os.path.join(self.place.name, "second")
        output("cpack", "--preset", "deb", "-B", second, cwd=ROOT)
        with open(self.file, "rb") as one, open(os.path.join(second, os.path.basename(self.file)), "rb") as other:
            self.assertTrue(one.read() == other.read(), "a second package of this commit differs")

    def test_the_program_runs(self):
        self.assertTrue(output(self.program, "--version").startswith(f"shardmark {self.version} "))
        self.assertIn("all_reduce", output(self.program, "list"))
        run = os.path.join(self.place.name, "run")
        said = output(self.program, "run", "all_reduce", "--ranks", "2", "--bytes", "1KiB", "--algorithm", "ring", "--dtype", "float",
                      "--transport", "shared_memory", "--max-seconds", "0.05", "--no-limits", "--out", run)
        self.assertIn("ACCEPTED: 1 passed", said)
        if importlib.util.find_spec("matplotlib") is not None:
            self.assertTrue(os.path.exists(self.at("share/shardmark/scripts/figures.py")))
            shutil.rmtree(os.path.join(run, "figures"))
            output(self.program, "report", run, cwd="/")
            with open(os.path.join(run, "figures", "figures.json"), encoding="utf-8") as file:
                self.assertTrue(json.load(file))

    def test_the_python_package_is_found(self):
        path = self.at("lib/python3/dist-packages")
        said = output(sys.executable, "-B", "-c", "import shardmark; print(shardmark.__version__, shardmark.__file__)",
                      env=os.environ | {"PYTHONPATH": path}, cwd=self.place.name)
        self.assertEqual(said.split(), [self.version, f"{path}/shardmark/__init__.py"])

    def test_documents(self):
        with gzip.open(self.at("share/man/man1/shardmark.1.gz"), "rt", encoding="utf-8") as file:
            self.assertEqual(file.read(), output(self.program, "manual"))
        for shell, path in {"bash": "bash-completion/completions/shardmark", "zsh": "zsh/vendor-completions/_shardmark",
                            "fish": "fish/vendor_completions.d/shardmark.fish"}.items():
            with open(self.at(f"share/{path}"), encoding="utf-8") as file:
                self.assertEqual(file.read(), output(self.program, "completion", shell))
        for name in ("changelog.gz", "changelog.Debian.gz"):
            with gzip.open(self.at(f"share/doc/shardmark/{name}"), "rt", encoding="utf-8") as file:
                self.assertIn(self.version, file.read())
        self.assertTrue(os.path.exists(self.at("share/doc/shardmark/copyright")))

    def test_the_list_of_files(self):
        path = self.at("share/doc/shardmark/sbom.spdx.json")
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        files = {os.path.relpath(os.path.join(folder, name), self.at("")) for folder, _, names in os.walk(self.at("")) for name in names}
        self.assertEqual({file["fileName"].removeprefix("./") for file in document["files"]}, files - {os.path.relpath(path, self.at(""))})
        names = {package["name"] for package in document["packages"]}
        self.assertLessEqual({"shardmark", "libmpich12", "libdnnl2", "nlohmann-json3-dev"}, names)
        tools = os.path.join(ROOT, "build", "spdx_tools")
        if not os.path.isdir(tools):
            subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--target", tools, SPDX_TOOLS],
                           capture_output=True, check=False)
        if not os.path.isdir(tools):
            self.skipTest(f"pip cannot install {SPDX_TOOLS}")
        output(sys.executable, "-m", "spdx_tools.spdx.clitools.pyspdxtools", "-i", path, env=os.environ | {"PYTHONPATH": tools})


if __name__ == "__main__":
    unittest.main()
