#!/usr/bin/env python3
"""The files of a run that is killed at any moment, on a full disk, in a read-only folder, or with a second run
in its folder.

Takes the built program from $SHARDMARK_PROGRAM and the number of kills from $SHARDMARK_KILLS. Tests
that mount file systems require root. They use a separate mount namespace, which ends with the process.
"""

import ctypes
import mmap
import os
import random
import shutil
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree

from process import LAUNCHER, PROGRAM, TemporaryFolder, kill_all, read_run, shardmark

KILLS = int(os.environ.get("SHARDMARK_KILLS", "10"))
SMALL = ["run", "all_reduce", "--ranks", "2", "--dtype", "float", "--algorithm", "ring", "--transport", "shared_memory",
         "--no-limits"]
MANY = [*SMALL, "--bytes", "8:512KiB:x2", "--max-seconds", "0.01"]
NO_FIGURES = {"SHARDMARK_FIGURES": "/nonexistent"}
CLONE_NEWNS = 0x20000


def mount(*words):
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def own_mounts():
    """Creates private mounts, with a private /dev/shm. Returns an empty string, or the reason why it cannot."""
    if os.geteuid() != 0:
        return "to mount needs root"
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    return mount("--make-rprivate", "/") or mount("-t", "tmpfs", "shm", "/dev/shm")


WHY_NO_MOUNTS = own_mounts()


class Kept(TemporaryFolder):
    def told(self, output):
        """The number of cases that the run printed as done. Each was on the disk before."""
        return sum(line.startswith(("pass", "fail", "skip")) for line in output.splitlines())

    def check_whole(self, out, output=""):
        """Reads the run with the program's readers. Returns the number of cases, or None if no run had begun."""
        report = shardmark("report", out, env=NO_FIGURES)
        if not os.path.exists(os.path.join(out, "run.json")):
            self.assertEqual((report.returncode, self.told(output)), (2, 0), report.stderr)
            return None
        self.assertEqual(report.returncode, 0, report.stderr)
        run = read_run(out)
        for case in run["benchmarks"]:
            self.assertTrue(case["verdict"] == "pass" or run["context"]["status"] == "aborted", case)
        self.assertGreaterEqual(len(run["benchmarks"]), self.told(output))
        suites = xml.etree.ElementTree.parse(os.path.join(out, "junit.xml")).getroot()
        self.assertEqual(int(suites.get("tests")), len(run["benchmarks"]))
        if os.path.exists(os.path.join(out, "environment.json")):
            listed = shardmark("history", "--db", self.path("history.sqlite"), "add", out)
            self.assertEqual(listed.returncode, 0, listed.stderr)
        return len(run["benchmarks"])


class KilledRun(Kept):
    def test_finished_cases_are_readable(self):
        moments = random.Random(20261122)
        begin = time.monotonic()
        done = shardmark(*MANY, "--out", self.path("whole"), env=NO_FIGURES)
        duration = time.monotonic() - begin
        self.assertEqual(done.returncode, 0, done.stderr)
        cases = self.check_whole(self.path("whole"), done.stdout)
        self.assertEqual(self.told(done.stdout), cases, done.stdout)
        found = []
        for number in range(KILLS):
            out = self.path("again" if number % 2 else f"run{number}")
            mark = f"SHARDMARK_KILLED_RUN={os.getpid()}-{number}"
            with open(self.path("output"), "w+", encoding="utf-8") as output:
                process = subprocess.Popen([PROGRAM, *MANY, "--out", out], stdout=output, stderr=subprocess.DEVNULL,
                                           stdin=subprocess.DEVNULL, env={**os.environ, **NO_FIGURES, **dict([mark.split("=")])})
                time.sleep(moments.uniform(0, duration))
                kill_all(mark.encode())
                process.wait(timeout=10)
                output.seek(0)
                with self.subTest(number=number):
                    found.append(self.check_whole(out, output.read()))
        begun = [count for count in found if count is not None]
        print(f"{KILLS} kills: {len(begun)} runs had begun, with {sum(begun)} cases; {begun.count(cases)} were whole")
        self.assertTrue(any(begun), "no kill met a run with cases")
        done = shardmark(*MANY, "--out", self.path("again"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.check_whole(self.path("again"), done.stdout), cases)
        self.assertEqual([name for name in os.listdir(self.path("again")) if name.endswith(".tmp")], [])
        if not WHY_NO_MOUNTS:
            self.check_shared_memory()

    def check_shared_memory(self):
        """A later run removes files that MPICH leaves if it is killed at its start. Mapped files stay."""
        before = os.listdir("/dev/shm")
        print("left in /dev/shm:", before)
        self.assertFalse([name for name in before if not name.startswith(("mpich_shar_tmp", "ucx_shm_posix_"))])
        for name in ("mpich_shar_tmpLOST", "ucx_shm_posix_1", "mpich_shar_tmpKEPT", "mpich_shar_tmpYOUNG", "others"):
            with open(f"/dev/shm/{name}", "wb") as file:
                file.truncate(4096)
        with open("/dev/shm/mpich_shar_tmpKEPT", "r+b") as file:
            self.addCleanup(mmap.mmap(file.fileno(), 4096).close)
        for name in os.listdir("/dev/shm"):
            if not name.endswith("YOUNG"):
                os.utime(f"/dev/shm/{name}", (0, time.time() - 120))
        done = shardmark(*SMALL, "--bytes", "8", "--out", self.path("next"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stderr)
        left = ["mpich_shar_tmpKEPT", "mpich_shar_tmpYOUNG", "others"]
        if "openmpi" in LAUNCHER[0]:
            left = [*left, "mpich_shar_tmpLOST", "ucx_shm_posix_1"]
        self.assertEqual(sorted(os.listdir("/dev/shm")), sorted(left))


class Disk(Kept):
    def disk(self, size):
        if WHY_NO_MOUNTS:
            self.skipTest(WHY_NO_MOUNTS)
        path = self.path("disk" + size)
        os.mkdir(path)
        self.assertEqual(mount("-t", "tmpfs", "-o", f"size={size}", "disk", path), "")
        self.addCleanup(subprocess.run, ["umount", "-l", path], check=False)
        return path

    def test_a_full_disk_keeps_finished_cases(self):
        kept = []
        for size in ("4k", "16k", "32k", "48k", "64k"):
            with self.subTest(size=size):
                out = os.path.join(self.disk(size), "run")
                done = shardmark(*MANY, "--out", out, env=NO_FIGURES)
                self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertRegex(done.stderr, rf"^shardmark: cannot write to {out}/[a-z.]+: No space left on device")
                self.assertFalse([name for name in os.listdir(out) if name.endswith(".tmp")])
                elsewhere = self.path("copy" + size)
                shutil.copytree(out, elsewhere)
                kept.append(self.check_whole(elsewhere, done.stdout))
        self.assertTrue(any(kept), kept)
        print("kept on full disks:", kept)

    def test_other_commands_on_a_full_disk(self):
        disk = self.disk("64k")
        done = shardmark(*SMALL, "--bytes", "8", "--max-seconds", "0.01", "--out", self.path("run"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(disk, "text"), "w", encoding="utf-8") as file:
            file.write("word " * 8000)
        for words in (["history", "--db", os.path.join(disk, "history.sqlite"), "add", self.path("run")],
                      ["data", os.path.join(disk, "text"), "--out", os.path.join(disk, "pair")]):
            done = shardmark(*words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (3, 1), done.stderr)
            self.assertRegex(done.stderr, "history.sqlite|pair.bin")
            self.assertFalse([name for name in os.listdir(disk) if name.endswith((".tmp", ".bin", ".idx"))])

    def test_a_read_only_folder(self):
        if WHY_NO_MOUNTS:
            folder = self.path("closed")
            os.mkdir(folder, 0o555)
        else:
            folder = self.disk("1m")
            self.assertEqual(mount("-o", "remount,ro", folder), "")
        done = shardmark(*SMALL, "--bytes", "8", "--out", os.path.join(folder, "run"))
        self.assertEqual((done.returncode, done.stderr.count("\n")), (3, 1), done.stderr)
        self.assertRegex(done.stderr, f"cannot write to {folder}/run: (Read-only file system|Permission denied)")


class TwoRuns(Kept):
    # Each lasts seconds, so that on a busy machine the first has not ended before the second starts.
    def test_in_one_folder(self):
        out = self.path("run")
        words = [PROGRAM, *SMALL, "--bytes", "8:4MiB:x2", "--max-seconds", "1", "--out", out]
        runs = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                                 env={**os.environ, **NO_FIGURES}) for _ in range(2)]
        told = [run.communicate(timeout=120) for run in runs]
        self.assertEqual(sorted(run.returncode for run in runs), [0, 3], told)
        first = 0 if runs[0].returncode == 0 else 1
        self.assertEqual(told[1 - first][1], f"shardmark: cannot write to {out}: another run is writing there\n")
        self.assertEqual(read_run(out)["context"]["status"], "complete")
        self.assertEqual(self.check_whole(out, told[first][0]), self.told(told[first][0]))
        expected = sum(int(case["samples"]) * 2 * 8 for case in read_run(out)["benchmarks"])
        self.assertEqual(os.path.getsize(os.path.join(out, "samples.bin")), expected)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
