#!/usr/bin/env python3
"""A run reports each injected fault: its kind, its rank or link, and its time.

Takes the built program from $SHARDMARK_PROGRAM. One placement of each kind. With SHARDMARK_PLACEMENTS=N, N random
placements of each kind, and the number of reported ones.
"""

import concurrent.futures
import json
import os
import random
import re
import subprocess
import sys
import time
import unittest

from process import PROGRAM, TemporaryFolder, read_run

PLACEMENTS = int(os.environ.get("SHARDMARK_PLACEMENTS", "1"))
TIMEOUT_S = 5
SMALL = ("all_reduce", "--ranks", "2", "--transport", "shared_memory", "--algorithm", "ring,direct", "--dtype", "float",
         "--bytes", "64,4KiB,256KiB,1MiB", "--max-seconds", "0.1")
LIBRARY = ("all_reduce", "--ranks", "2", "--transport", "mpi", "--algorithm", "library", "--dtype", "float", "--bytes", "64,4KiB,256KiB",
           "--max-seconds", "0.1")
DISK = ("nvme_bandwidth", "--ranks", "2", "--nvme_path", "/var/tmp", "--operation", "write", "--bytes", "2MiB", "--max-seconds", "0.1")
LINKS = ("link_matrix", "--ranks", "4", "--transport", "shared_memory", "--mode", "alone", "--bytes", "256KiB", "--max-seconds", "0.8")


class Run:
    """One run with a fault: its output and its files."""

    def __init__(self, out, fault, words):
        begin = time.monotonic()
        done = subprocess.run([PROGRAM, "run", "--inject", fault, *words, "--timeout", str(TIMEOUT_S), "--out", out],
                              capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
        self.seconds = time.monotonic() - begin
        self.code, self.text = done.returncode, done.stdout + done.stderr
        self.json = read_run(out)
        with open(os.path.join(out, "drain.json"), encoding="utf-8") as file:
            self.health = json.load(file)
        with open(os.path.join(out, "report.html"), encoding="utf-8") as file:
            self.page = file.read()

    def drained(self, kind):
        return [entry for entry in self.health["drain"] if entry["kind"] == kind]


class Faults(TemporaryFolder):
    def each(self, kind, place, check, ranks=2, words=SMALL, first=0):
        """place(random rank) returns a fault. check(run, rank) raises AssertionError if a finding is missing."""
        named = 0
        missed = []
        for number in range(PLACEMENTS):
            chance = random.Random(f"{kind} {number}")
            rank = chance.randrange(first, ranks) if PLACEMENTS > 1 else 1
            fault = place(rank, chance)
            run = Run(self.path(f"{kind}{number}"), fault, words)
            try:
                self.assertEqual(run.json["context"]["injected"], [fault], run.text)
                self.assertIn(fault, run.page)
                self.assertNotIn("\nACCEPTED", run.text)
                check(run, rank, fault)
                named += 1
            except AssertionError as error:
                missed.append(f"{fault}: {error}\n{run.text}")
        if PLACEMENTS > 1:
            print(f"{kind}: {named} of {PLACEMENTS} named", file=sys.stderr, flush=True)
        self.assertFalse(missed, "\n".join(missed))

    def named(self, run, kind, ranks, level="WARN"):
        """Checks that the run reports only these ranks, with only this kind. Returns the evidence."""
        found = [entry for entry in run.health["drain"] if entry["level"] == level]
        self.assertEqual([(entry["kind"], entry["ranks"]) for entry in found], [(kind, ranks)], run.text)
        self.assertEqual(run.health["code"], {"WARN": 1, "CRITICAL": 2}[level])
        return found[0]["evidence"]

    def test_a_slow_rank(self):
        self.each("slow_rank", lambda rank, chance: f"slow_rank:rank={rank},seconds={chance.randrange(10, 30)}ms",
                  lambda run, rank, _: self.assertRegex(self.named(run, "slow rank", [rank]), r"in \d+ of \d+ cases"))

    def test_a_rank_that_computes_slowly(self):
        words = ("gemm", "--ranks", "2", "--dtype", "float,bfloat16", "--shape", "512x512x512,512x1024x512,256x3072x768",
                 "--max-seconds", "0.2")
        self.each("slow_rank_by_a_factor", lambda rank, chance: f"slow_rank:rank={rank},factor={chance.choice((4, 5, 6))}",
                  lambda run, rank, _: self.named(run, "slow rank", [rank]), words=words)

    def test_a_slow_core(self):
        words = (*SMALL[:-3], "1MiB,2MiB,4MiB,8MiB,16MiB", "--max-seconds", "0.2")  # longer than a time slice
        self.each("slow_core", lambda rank, chance: f"slow_core:rank={rank},threads={chance.choice((3, 4))}",
                  lambda run, rank, _: self.named(run, "shared core", [rank]), words=words)

    def test_jitter(self):
        self.each("jitter", lambda rank, chance: f"jitter:rank={rank},seconds={chance.randrange(15, 30)}ms,probability=0.2",
                  lambda run, rank, _: self.named(run, "jitter", [rank]), words=(*SMALL[:-1], "0.2"))

    def test_a_slow_link(self):
        def place(rank, chance):
            pair = sorted({rank, (rank + chance.randrange(1, 4)) % 4})
            return f"slow_link:ranks={pair[0]}-{pair[1]},rate={chance.choice((60, 100, 150))}MB/s"

        def check(run, _, fault):
            pair = [int(rank) for rank in fault.split("=")[1].split(",")[0].split("-")]
            self.assertIn("bandwidth", self.named(run, "slow link", pair))
        self.each("slow_link", place, check, ranks=4, words=LINKS)

    def test_a_corrupt_message(self):
        """A ring of three passes a wrong message on. The report names the rank and the peer where it began."""
        def check(run, rank, fault):
            self.assertEqual(run.code, 1)
            peer = (rank + 2) % 3
            evidence = self.named(run, "wrong result", [rank, peer], "CRITICAL")
            sample = fault.split("iteration=")[1].split(",")[0]
            self.assertRegex(evidence, rf"rank {rank}: running: sample {sample}: .*from rank {peer}")
        words = ("all_gather", "--ranks", "3", *SMALL[3:5], "--algorithm", "ring", "--dtype", "float",
                 "--bytes", "768,12KiB", "--max-seconds", "0.05")
        self.each("corrupt_message", lambda rank, chance: f"corrupt_message:rank={rank},peer={(rank + 2) % 3},"
                  f"iteration={chance.randrange(3)},bit={chance.randrange(512)}", check, ranks=3, words=words)

    def test_a_corrupt_message_in_a_sum(self):
        """For a sum over two ranks, the wrong message is known. For three, the faulty rank is unknown, and no rank is blamed.

        The sums are of integers, because a sum of floats may round a wrong bit away."""
        def check(run, rank, _):
            ranks = int(run.json["benchmarks"][0]["case"]["ranks"])
            self.named(run, "wrong result", [rank, 1 - rank] if ranks == 2 else [], "CRITICAL")
        for ranks in (2, 3):
            words = ("all_reduce", "--ranks", str(ranks), *SMALL[3:5], "--algorithm", "ring", "--dtype", "int32", "--bytes", "768", "--max-seconds", "0.05")
            self.each(f"corrupt_message_in_a_sum_of_{ranks}", lambda rank, chance, ranks=ranks: f"corrupt_message:rank={rank},"
                      f"peer={(rank + ranks - 1) % ranks},iteration={chance.randrange(3)},bit={chance.randrange(512)}", check, ranks=ranks, words=words)

    def lost(self, run, rank, word):
        self.assertEqual(run.code, 4, run.text)
        self.assertEqual(run.json["context"]["status"], "aborted")
        evidence = self.named(run, "lost rank", [rank], "CRITICAL")
        self.assertRegex(evidence, rf"rank {rank} \(pid .*{word}.*during all_reduce/")
        return evidence

    def test_a_lost_rank(self):
        """All kinds run at once, because they mostly wait. One hang occurs while the other rank waits inside MPI."""
        def hung(run, rank, _):
            self.assertLess(run.seconds, TIMEOUT_S + 5)
            evidence = self.lost(run, rank, "made no progress")
            self.assertRegex(evidence, r"it was last in \w+, with (rank \d+|its group) at message \d+ \(\d+ bytes\)\. The others")
            self.assertRegex(evidence, rf"rank {1 - rank} in all_reduce, waiting for (rank {rank}|its group) at message \d+ \(\d+ bytes\)")

        def died(run, rank, _):
            self.lost(run, rank, "died")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(self.each, name, lambda rank, chance, name=name: f"{name.split()[0]}:rank={rank},iteration={chance.randrange(3)}",
                                     check, words=words)
                         for name, check, words in (("hang", hung, SMALL), ("die", died, SMALL), ("exit_early", died, SMALL),
                                                    ("hang beside MPI", hung, LIBRARY))]:
                done.result()

    def test_a_lost_rank_in_every_unit(self):
        """A rank may also wait for its own threads, files or other libraries. If a unit has one rank, no other rank is left to report it."""
        listed = subprocess.run([PROGRAM, "list"], capture_output=True, text=True, timeout=60, check=True).stdout
        units = re.findall(r"^([a-z]\w*):", listed, re.MULTILINE)
        self.assertGreater(len(units), 40)
        units.remove("host_device_bandwidth")  # skipped without a GPU
        ways = [(unit, kind, rank) for unit in (units if PLACEMENTS > 1 else ("overlap", "nvme_bandwidth", "zero_overlap"))
                for kind in ("hang", "die") for rank in (0, 1) if rank == 0 or unit not in ("memory_arena", "nvme_bandwidth")]

        def one(way):
            unit, kind, rank = way
            run = Run(self.path("_".join(map(str, way))), f"{kind}:rank={rank},iteration=0", (unit, "--nvme_path", "/var/tmp") if "nvme" in unit else (unit,))
            evidence = self.named(run, "lost rank", [rank], "CRITICAL")
            self.assertRegex(evidence, rf"rank {rank} \(pid .*{'died' if kind == 'die' else 'made no progress'}.*during {unit}/")
            self.assertEqual(run.json["benchmarks"][-1]["name"].split("/")[0], unit)
            self.assertFalse(os.path.exists(self.path("_".join(map(str, way)) + "/running")))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for way, done in [(way, pool.submit(one, way)) for way in ways]:
                with self.subTest(way=way):
                    done.result()

    def test_a_rank_out_of_memory(self):
        def check(run, rank, _):
            self.assertEqual(run.code, 1)
            self.assertRegex(self.named(run, "out of memory", [rank], "CRITICAL"), "out of memory on host")
        self.each("out_of_memory", lambda rank, chance: f"out_of_memory:rank={rank},bytes={chance.choice((64, 100, 500))}KiB", check)

    def test_a_corrupt_result(self):
        words = ("gemm", "--ranks", "2", "--dtype", "float", "--shape", "64x64x64", "--max-seconds", "0.05")
        self.each("corrupt_result", lambda rank, chance: f"corrupt_result:rank={rank},iteration={chance.randrange(3)},bit={chance.randrange(23, 31)}",
                  lambda run, rank, _: self.named(run, "wrong result", [rank], "CRITICAL"), words=words)

    def test_a_full_disk(self):
        """The full disk is not of rank 0, which writes the run directory."""
        self.each("full_disk", lambda rank, chance: f"full_disk:rank={rank},bytes={chance.choice((0, 64, 1000))}KiB",
                  lambda run, rank, _: self.assertRegex(self.named(run, "full disk", [rank], "CRITICAL"), "writing .*: No space left"),
                  ranks=3, words=(*DISK[:2], "3", *DISK[3:]), first=1)

    def test_a_full_disk_under_the_run_directory(self):
        """The run cannot be extended. It reports this and keeps the finished cases."""
        out = self.path("run")
        done = subprocess.run([PROGRAM, "run", *SMALL, "--out", out, "--inject", "full_disk:rank=0,bytes=20KiB"],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, rf"^shardmark: cannot write to {out}/\S+: No space left on device\n$")
        self.assertIn("REJECTED: aborted", done.stdout)
        kept = [case["verdict"] for case in read_run(out)["benchmarks"]]
        self.assertEqual(kept, ["pass"] * done.stdout.count("pass    "))
        self.assertTrue(kept)

    def test_a_slow_disk(self):
        words = (*DISK[:5], "--operation", "read,write", "--block_size", "64KiB,128KiB,256KiB", "--bytes", "1MiB", "--max-seconds", "0.2")
        self.each("slow_disk", lambda rank, chance: f"slow_disk:rank={rank},rate={chance.choice((20, 30))}MB/s",
                  lambda run, rank, _: self.assertIn("nvme_bandwidth", self.named(run, "slow disk", [rank])), words=words)

    def test_a_wrong_version(self):
        def check(run, rank, fault):
            library = fault.split("library=")[1].split(",")[0]
            self.assertIn(f"software.{library}", self.named(run, "different software", [rank]))
        self.each("wrong_version", lambda rank, chance: f"wrong_version:rank={rank},library={chance.choice(('mpi', 'onednn', 'nccl', 'cuda'))},"
                  "version=1.2.3", check, ranks=3,
                  words=("barrier", "--ranks", "3", "--transport", "shared_memory", "--max-seconds", "0.05"))


class Refused(TemporaryFolder):
    def test_invalid_faults(self):
        for fault, words in (("slow_rnk:rank=1", "unknown kind 'slow_rnk'; did you mean 'slow_rank'?"),
                             ("die:rank=1,iteratoin=2", "did you mean 'iteration'?"),
                             ("die:rank=1", "iteration is missing"),
                             ("hang:rank=1,iteration=1,iteration=2", "'iteration' is given twice"),
                             ("die:rank=one,iteration=2", "rank is 'one'; expected a whole number (example: rank=1)"),
                             ("die:rank=2,iteration=2", "rank 2 does not exist (number of ranks: 2)"),
                             ("slow_link:ranks=0-1,rate=50MB", "rate is '50MB'; expected a rate (example: rate=50MB/s)"),
                             ("slow_rank:rank=1", "either factor (above 1) or seconds"),
                             ("wrong_version:rank=1,library=ncll,version=2", "did you mean 'nccl'?")):
            with self.subTest(fault=fault):
                done = subprocess.run([PROGRAM, "run", *SMALL, "--out", self.path("run"), "--inject", fault],
                                      capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
