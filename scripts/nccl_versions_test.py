"""scripts/nccl_versions: its arguments, its lock, and that each version is installed once. pip and the program are
stand-ins, so this shows nothing about NCCL itself."""
import fcntl
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nccl_versions")
# python3 -m pip install … --target FOLDER PACKAGE==VERSION; version 9.9.9 does not exist.
PIP = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$*" in
  *==9.9.9) echo "ERROR: No version (from versions: 2.28.9, 2.29.2)"; exit 1 ;;
esac
while [ "$1" != --target ]; do shift; done
[ -n "$EMPTY_WHEEL" ] && exit 0
mkdir -p "$2/nvidia/nccl/lib" && touch "$2/nvidia/nccl/lib/libnccl.so.2"
"""
PROGRAM = """#!/bin/sh
printf '%s\\n' "$@" >"$WORDS"
echo compared
exit "${CODE:-0}"
"""


class Versions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = folder.name
        self.dir = self.path("nccl")
        for name, text in (("bin/python3", PIP), ("shardmark", PROGRAM)):
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(self.path(name), 0o755)

    def path(self, name):
        return os.path.join(self.place, name)

    def lines(self, name):
        if not os.path.exists(self.path(name)):
            return []
        with open(self.path(name), encoding="utf-8") as file:
            return file.read().splitlines()

    def call(self, *words, **env):
        return subprocess.run([SCRIPT, *words, "--dir", self.dir, "--program", self.path("shardmark")],
                              env={**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"],
                                   "CALLS": self.path("calls"), "WORDS": self.path("words"), **env},
                              capture_output=True, text=True, check=False, timeout=60)

    def refused(self, code, *words, **env):
        done = self.call(*words, **env)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertEqual(self.lines("words"), [])
        return done.stderr

    def test_both_versions_are_compared_and_installed_once(self):
        for _ in range(2):
            done = self.call("2.28.9", "2.29.2", "all_reduce", "--launches", "3", "--a", "NCCL_ALGO=Ring NCCL_PROTO=LL")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call.split()[-1] for call in self.lines("calls")],
                         ["nvidia-nccl-cu13==2.28.9", "nvidia-nccl-cu13==2.29.2"])
        words = self.lines("words")
        self.assertEqual(words[:5], ["ab", "--a-library", f"nccl={self.dir}/2.28.9/nvidia/nccl/lib",
                                     "--b-library", f"nccl={self.dir}/2.29.2/nvidia/nccl/lib"])
        self.assertEqual(words[5], "--out")
        self.assertEqual(os.path.dirname(words[6]), self.dir + "/results")
        self.assertEqual(words[7:], ["all_reduce", "--launches", "3", "--a", "NCCL_ALGO=Ring NCCL_PROTO=LL"])
        self.assertIn("2.29.2 is installed\n", done.stdout)
        log = [name for name in os.listdir(self.dir + "/logs") if name.startswith("ab-")][-1]
        self.assertEqual(self.lines("nccl/logs/" + log), ["compared"])

    def test_the_exit_code_is_that_of_ab(self):
        for code in (1, 2, 3):
            done = self.call("2.28.9", "2.29.2", CODE=str(code))
            self.assertEqual(done.returncode, code)
            self.assertIn(f"ab ended with {code}", done.stdout)

    def test_a_given_folder_of_results_is_passed_on(self):
        self.call("2.28.9", "2.29.2", "--out", self.path("mine"))
        self.assertEqual(self.lines("words")[5:], ["--out", self.path("mine")])

    def test_only_install_starts_nothing(self):
        done = self.call("2.28.9", "2.29.2", "--only-install")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((len(self.lines("calls")), self.lines("words")), (2, []))

    def test_wrong_versions_are_rejected(self):
        self.assertIn("version is '2.28'; expected", self.refused(2, "2.28", "2.29.2"))
        self.assertIn("two versions are required", self.refused(2, "2.28.9"))
        self.assertIn("both versions are 2.28.9", self.refused(2, "2.28.9", "2.28.9"))
        self.assertEqual(self.lines("calls"), [])
        self.assertIn("9.9.9; PyPI has 2.28.9, 2.29.2; log:", self.refused(3, "2.28.9", "9.9.9"))
        self.assertIn("has no nvidia/nccl/lib/libnccl.so.2", self.refused(3, "2.28.9", "2.29.3", EMPTY_WHEEL="1"))

    def test_two_calls_exclude_each_other(self):
        os.makedirs(self.dir)
        with open(self.dir + "/lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("another call uses", self.refused(3, "2.28.9", "2.29.2"))
        self.assertEqual(self.call("2.28.9", "2.29.2").returncode, 0)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
