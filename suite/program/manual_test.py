#!/usr/bin/env python3
"""The manual page and the completion of shells."""

import os
import re
import shutil
import subprocess
import sys
import unittest

from process import PROGRAM, TemporaryFolder, shardmark

HERE = os.path.dirname(os.path.abspath(__file__))


def words_after(*line):
    """The words that continue a line, without their meaning."""
    done = shardmark("completion", "words", *line)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{line}: {done.returncode}: {done.stderr}")
    return [word.split("\t")[0] for word in done.stdout.splitlines()]


def commands():
    return re.findall(r"^  (\w+) ", shardmark().stdout, re.MULTILINE)


class Manual(unittest.TestCase):
    def test_every_command_and_option_is_in_it(self):
        page = shardmark("manual").stdout
        for command in commands():
            self.assertIn(f".SS shardmark {command} [OPTIONS]", page)
            for name in re.findall(r"^  (--[\w-]+)", shardmark(command, "--help").stdout, re.MULTILINE):
                self.assertIn(name.replace("-", r"\-"), page)
        for unit in words_after("list", ""):
            self.assertIn(f".TP\n\\fB{unit}\\fR\n", page)

    def test_its_exit_codes_are_those_of_the_readme(self):
        with open(os.path.join(HERE, "..", "README.md"), encoding="utf-8") as file:
            table = file.read().split("## Exit codes")[1].split("\n## ")[0]
        codes = [code for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(", ")]
        status = shardmark("manual").stdout.split(".SH EXIT STATUS")[1].split(".SH ENVIRONMENT")[0]
        self.assertEqual(re.findall(r"\\fB(\d+)\\fR", status), codes)

    @unittest.skipIf(shutil.which("groff") is None, "no groff")
    def test_groff_has_no_warnings(self):
        page = shardmark("manual").stdout
        done = subprocess.run(["groff", "-man", "-Tutf8", "-Kutf8", "-ww"], input=page, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout)
        self.assertRegex(text, r"--max-seconds SECONDS\n +sampling time per case")
        broken = subprocess.run(["groff", "-man", "-Tutf8", "-Kutf8", "-ww"], input=page + ".NO\n", capture_output=True, text=True, check=False)
        self.assertNotEqual(broken.stderr, "")


class Words(unittest.TestCase):
    def test_commands(self):
        self.assertEqual(words_after(""), commands())
        self.assertEqual(words_after("pl"), ["plan"])
        self.assertEqual(words_after("completion", ""), ["bash", "zsh", "fish"])
        self.assertEqual(words_after("nonsense", ""), [])

    def test_units_and_their_axes(self):
        self.assertIn("all_reduce", words_after("run", "all_"))
        self.assertEqual(words_after("list", "all_red"), ["all_reduce"])
        self.assertEqual(words_after("run", "all_reduce", "--algo"), ["--algorithm"])
        self.assertEqual(words_after("run", "layer_norm", "--algo"), [])
        self.assertIn("--algorithm", words_after("run", "--algo"))
        self.assertIn("--tp", words_after("run", "gpt_step", "--t"))

    def test_values(self):
        self.assertEqual(words_after("run", "all_reduce", "--algorithm", "rin"), ["ring"])
        self.assertEqual(words_after("run", "all_reduce", "--algorithm=rin"), ["--algorithm=ring"])
        self.assertEqual(words_after("run", "all_reduce", "--algorithm", "ring,recursive_d"), ["ring,recursive_doubling"])
        self.assertEqual(words_after("run", "layer_norm", "--sequence-parallel", ""), ["off", "on"])
        self.assertEqual(words_after("run", "--profile", ""), ["quick", "acceptance", "paper"])
        self.assertEqual(words_after("run", "--device", ""), ["host", "cuda"])
        self.assertEqual(words_after("run", "--timing", "w"), ["window"])
        self.assertIn("gpt2_1558m", words_after("plan", "--model", "gpt2"))
        self.assertEqual(words_after("collective", "all_to_all_"), ["all_to_all_v"])

    def test_options_of_commands(self):
        self.assertEqual(words_after("compare", "--ag"), ["--against"])
        self.assertEqual(words_after("history", ""), ["add", "list", "show", "plot", "export"])
        self.assertEqual(words_after("history", "--db", "file", "plot", "--o"), ["--out"])
        self.assertEqual(words_after("ab", "--lau"), ["--launches"])
        self.assertEqual(words_after("ab", "all_reduce", "--algo"), ["--algorithm"])

    def test_an_unfinished_line_is_not_an_error(self):
        self.assertEqual(words_after("run", "al_reduce", "--ranks", "x", "--prof"), ["--profile"])
        self.assertEqual(words_after("run", "al_reduce", "--algorithm", ""), [])
        self.assertEqual(words_after("report", ""), [])

    def test_unknown_shells_are_errors(self):
        done = shardmark("completion", "bsh")
        self.assertEqual((done.returncode, done.stderr), (2, "shardmark: unknown shell 'bsh'; did you mean 'bash'?\n"))


class Shells(TemporaryFolder):
    def setUp(self):
        super().setUp()
        os.symlink(PROGRAM, self.path("shardmark"))
        self.environment = os.environ | {"PATH": f"{self.folder.name}:{os.environ['PATH']}", "HOME": self.folder.name}

    def output(self, *words):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=self.environment, cwd=self.folder.name, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def in_bash(self, *line):
        script = ('source <(shardmark completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shardmark; '
                  '((${#COMPREPLY[@]} == 0)) || printf "%s\\n" "${COMPREPLY[@]}"')
        return self.output("bash", "-uc", script, "bash", "shardmark", *line).splitlines()

    def test_bash(self):
        self.assertEqual(self.in_bash("pl"), ["plan"])
        self.assertIn("all_reduce", self.in_bash("run", ""))
        self.assertEqual(self.in_bash("run", "all_reduce", "--algo"), ["--algorithm"])
        self.assertEqual(self.in_bash("run", "all_reduce", "--algorithm", "=", "rin"), ["ring"])
        self.assertEqual(self.in_bash("run", "--profile", "=", "paper", "all_reduce", "--device", "="), ["host", "cuda"])
        self.assertEqual(self.in_bash("run", "--profile", "=", "paper", "all_red"), ["all_reduce"])
        self.assertEqual(self.in_bash("report", ""), [])

    @unittest.skipIf(shutil.which("zsh") is None, "no zsh")
    def test_zsh(self):
        script = ('compdef() { :; }; _describe() { print -l -- "${(@P)2}"; }; _files() { print FILES; }; '
                  'source <(shardmark completion zsh); words=(shardmark "$@"); CURRENT=$#words; _shardmark')
        self.assertEqual(self.output("zsh", "-fc", script, "zsh", "run", "--prof"), "--profile:quick, acceptance or paper (default: quick)\n")
        self.assertEqual(self.output("zsh", "-fc", script, "zsh", "report", ""), "FILES\n")

    @unittest.skipIf(shutil.which("fish") is None, "no fish")
    def test_fish(self):
        script = "shardmark completion fish | source; complete --do-complete $argv[1]"
        self.assertEqual(self.output("fish", "-Nc", script, "shardmark run --prof"), "--profile\tquick, acceptance or paper (default: quick)\n")
        self.assertEqual(self.output("fish", "-Nc", script, "shardmark run all_reduce --algorithm=rin"), "--algorithm=ring\n")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
