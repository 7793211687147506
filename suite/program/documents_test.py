#!/usr/bin/env python3
"""Every link of the documents has a target, and every command in them works."""

import json
import os
import re
import shlex
import shutil
import subprocess
import unittest

from process import NO_FIGURES, PROGRAM, TemporaryFolder, read_run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM_WORD = "build/release/shardmark"
# Exit codes that a documented command may return on a machine with unreliable measurements.
VERDICTS = {"health": (0, 1, 2), "compare": (0, 1), "ab": (0, 1)}
BASE, NEW = ["base", "base-1", "base-2"], ["new", "new-1", "new-2"]


def documents():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "*.md"],
                            capture_output=True, text=True, check=False).stdout.split()
    for path in listed or [os.path.relpath(os.path.join(folder, name), ROOT)
                           for folder, _, names in os.walk(ROOT) for name in names if name.endswith(".md")]:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            yield path, file.read()


def anchors(text):
    """The anchors that a page's headings have on a hosting site."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands():
    """(document, words) of each command of the program."""
    for path, text in documents():
        for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith(PROGRAM_WORD):
                    yield path, shlex.split(line, comments=True)[1:]


class Links(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        pages = dict(documents())
        self.assertGreater(len(pages), 10)
        for path, text in pages.items():
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                there = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                self.assertTrue(os.path.exists(os.path.join(ROOT, there)), f"{path}: {target}")
                if anchor:
                    self.assertIn(anchor, anchors(pages[there]), f"{path}: {target}")

    def test_every_document_is_two_clicks_from_the_readme(self):
        pages = dict(documents())
        reached = {"README.md"}
        for _ in range(2):
            for path in sorted(reached & pages.keys()):
                for target in re.findall(r"\]\(([^)\s#]+)", pages[path]):
                    reached.add(os.path.normpath(os.path.join(os.path.dirname(path), target)))
        self.assertEqual(set(pages) - reached, set())

    def test_every_document_is_a_page_of_the_site(self):
        with open(os.path.join(ROOT, "scripts/documentation/mkdocs.yml"), encoding="utf-8") as file:
            pages = set(re.findall(r": (\S+\.md)$", file.read(), re.MULTILINE))
        self.assertEqual(pages - {"units.md", "figures.md"}, set(dict(documents())))  # scripts/docs writes these two

    def test_no_line_is_longer_than_120_columns(self):
        for path, text in documents():
            for number, line in enumerate(text.splitlines(), 1):
                if " " in line.strip():  # a link cannot be wrapped
                    self.assertLessEqual(len(line), 120, f"{path}:{number}")

    def test_the_readme_is_short(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            text = file.read()
        self.assertLessEqual(text.count("\n"), 130)
        self.assertLessEqual(len(text.split()), 900)


class Commands(TemporaryFolder):
    """Commands run in the folder of their files. Long measurements are shortened."""

    def setUp(self):
        super().setUp()
        shutil.copy(os.path.join(ROOT, "README.md"), self.path("README.md"))
        os.makedirs(self.path("suite"))
        os.symlink(os.path.join(ROOT, "suite/recipes"), self.path("suite/recipes"))
        with open(self.path("ds_config.json"), "w", encoding="utf-8") as file:
            json.dump({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
                       "zero_optimization": {"stage": 1}}, file)
        with open(self.path("arguments.txt"), "w", encoding="utf-8") as file:
            file.write("--tensor-model-parallel-size 2 --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
                       "--seq-length 32 --max-position-embeddings 32 --bf16\n")

    def shorter(self, words):
        """Returns the words of a command with the same checks and output that ends within seconds. Outside the README,
        measuring commands only list their cases, unless SHARDMARK_DOCUMENTS is set."""
        words = [self.case if word == "CASE" else word for word in words]
        compares = words[:2] == ["recipes", "compare"]  # recipes_test runs it
        runs = words[0] == "run" or words[:2] == ["recipes", "run"] or compares
        if not runs and words[0] not in ("scale", "ab"):
            return words
        if compares or (runs and not self.measures):
            return [*words, "--benchmark_list_tests"]
        if "--profile" in words:
            words += ["--benchmark_filter=barrier"]
        if words[0] == "ab":
            if "--launches" not in words:
                words += ["--launches", ""]
            words = ["1" if words[at - 1] == "--launches" else word for at, word in enumerate(words)]
        return [*words, "--max-seconds", "0.001", "--no-limits"]

    def run_words(self, words):
        env = {**os.environ, **(NO_FIGURES if words[0] in ("run", "ab") else {})}
        return subprocess.run([PROGRAM, *words], cwd=self.folder.name, env=env, capture_output=True,
                              text=True, timeout=300, stdin=subprocess.DEVNULL, check=False)

    def prepare(self):
        """Creates the runs that other commands read."""
        for launch in (*BASE, *NEW, "results/runs/today"):
            folder = launch if "-" in launch or "/" in launch else launch + "/1"
            done = self.run_words(["run", "barrier", "--ranks", "2", "--max-seconds", "0.001", "--no-limits", "--out", folder])
            self.assertEqual(done.returncode, 0, done.stderr)
        saving = ["run", "gpt_step/model:tiny", "--save", "checkpoints", "--max-seconds", "0.001", "--no-limits", "--out", "saved"]
        done = self.run_words(saving)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.case = read_run(self.path("results/runs/today"))["benchmarks"][0]["name"]
        os.makedirs(self.path("other"))
        os.symlink(PROGRAM, self.path("other/shardmark"))
        with open(self.path("results/runs/today/environment.json"), encoding="utf-8") as file:
            software = json.load(file)["same_on_all_ranks"]["software"]
        shutil.copy(software["onednn"]["library"], self.path("other"))

    def test_every_command_works(self):
        self.prepare()
        found = list(commands())
        self.assertGreater(len(found), 30)
        for path, words in found:
            with self.subTest(document=path, command=" ".join(words)):
                self.measures = path == "README.md" or "SHARDMARK_DOCUMENTS" in os.environ
                done = self.run_words(self.shorter(words))
                allowed = (0, 1) if "--inject" in words else VERDICTS.get(words[0], (0,))
                self.assertIn(done.returncode, allowed, done.stderr + done.stdout[-2000:])


if __name__ == "__main__":
    unittest.main()
