#!/usr/bin/env python3
"""Every unit over the links between virtual GPUs: each case passes, each oracle rules, and each skipped case has an allowed reason.

    gpu_matrix_test.py CrossSection      some units, ranks and orders of streams
    gpu_matrix_test.py Matrix            all units on 1, 2, 4 and 8 GPUs of one host and two, and some with 20 seeds

The streams are lazy, or interleave by a seed. Two hosts are processes with host names of their own, which needs root.
SHARDMARK_TWO_HOSTS=required makes a machine that cannot have them an error.
"""

import collections
import functools
import os
import re
import subprocess
import sys
import unittest

import gpu_matrix
from process import LAUNCHER, NO_FIGURES, PROGRAM, TemporaryFolder, one_case, read_run, shardmark

SHORT = ["--device", "cuda", "--max-seconds", "0.001", "--timeout", "120", "--no-limits"]
LONGEST_S = 1500  # of a launch


def units():
    """Returns the units of `shardmark list`, without those that cannot run."""
    listed = re.findall(r"^(\w+): ", shardmark("list").stdout, re.MULTILINE)
    return [unit for unit in listed if unit not in gpu_matrix.WITHOUT]


@functools.cache
def has_transport(unit):
    return re.search(r"^ +--transport\b", shardmark("list", unit).stdout, re.MULTILINE) is not None


def allowed(reason, expressions):
    reason = re.sub(r"^rank \d+: ", "", reason)
    return any(re.search(expression, reason) for expression in expressions)


def on_two_hosts(words, ranks):
    """Returns the command that starts half of the ranks on each of two hosts."""
    command = []
    for host in ("gpu1", "gpu2"):
        command += [":"] if command else list(LAUNCHER)
        command += ["-n", str(ranks // 2), "unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$0" "$@"', PROGRAM, *words]
    return command


def spread(cases, most, turn=0):
    """Returns at most so many of the cases, evenly spread; others at other turns."""
    return cases if len(cases) <= most else [cases[(i * len(cases) // most + turn) % len(cases)] for i in range(most)]


class Gpus(TemporaryFolder):
    MOST = None  # cases of a unit in a launch
    MOST_STEPS = 10  # cases of a training step in a launch; each launch has others
    turn = 0
    counts = collections.Counter()
    skipped = collections.Counter()
    refused = collections.Counter()

    @classmethod
    def tearDownClass(cls):
        print(f"\n{cls.__name__}: {cls.counts['pass']} cases passed, {cls.counts['skipped']} skipped", file=sys.stderr)
        for what, reasons in (("skipped", cls.skipped), ("without a case", cls.refused)):
            for reason, count in sorted(reasons.items()):
                print(f"  {what} {count} times: {reason}", file=sys.stderr)
        for unit, reason in gpu_matrix.WITHOUT.items():
            print(f"  left out {unit}: {reason}", file=sys.stderr)

    def launch(self, words, ranks, hosts, order):
        environment = {**os.environ, **NO_FIGURES, "SHARDMARK_VIRTUAL_GPUS": str(max(1, ranks // hosts)),
                       "SHARDMARK_VIRTUAL_STREAMS": order}
        command = ["run", *words, "--out", self.path("run")]
        return subprocess.run(on_two_hosts(command, ranks) if hosts == 2 else [PROGRAM, *command], capture_output=True, text=True,
                              timeout=LONGEST_S, stdin=subprocess.DEVNULL, env=environment, check=False)

    def smoke_cases(self, of, flags):
        """Returns the cases of each unit that has one. The other units say an allowed reason."""
        found = {}
        for unit in of:
            planned = shardmark("run", unit, "--profile", "smoke", *SHORT, *flags, *gpu_matrix.SHAPES.get(unit, []),
                                "--benchmark_list_tests")
            if planned.returncode == 0 and planned.stdout.strip():
                found[unit] = planned.stdout.splitlines()  # arguments of models have spaces
                continue
            reason = planned.stderr.strip().removeprefix("shardmark: ").removeprefix("error: ")
            self.assertTrue(allowed(reason, gpu_matrix.REFUSALS), f"{unit} {' '.join(flags)}: {reason}")
            self.refused[f"{unit}: {reason[:120]}"] += 1
        return found

    def expect_ruled(self, of, flags, ranks, hosts=1, order="lazy"):
        """Runs the units in a launch for each shape."""
        launches = collections.defaultdict(dict)
        for unit, cases in self.smoke_cases(of, flags).items():
            launches[tuple(gpu_matrix.SHAPES.get(unit, []))][unit] = cases
        for shape, cases_of in launches.items():
            self.expect_launch_ruled(cases_of, shape, flags, ranks, hosts, order)

    def expect_launch_ruled(self, of, shape, flags, ranks, hosts, order):
        most = self.MOST_STEPS if set(of) <= set(gpu_matrix.STEPS) else self.MOST
        if most:
            what = [name for cases in of.values() for name in spread(cases, most, self.turn)]
            self.turn += 1
        else:
            what = [*of, "--profile", "smoke", *flags, *shape]
        done = self.launch([*what, *SHORT], ranks, hosts, order)
        where = f"{' '.join(flags)} on {hosts} hosts, {order}"
        self.assertIn(done.returncode, (0, 1, 3), f"{where}: {(done.stdout + done.stderr)[-3000:]}")
        seen = set()
        for case in read_run(self.path("run"))["benchmarks"]:
            name, verdict = f"{case['name']} ({where})", case["verdict"]
            seen.add(case["unit"])
            type(self).counts[verdict] += 1
            if verdict == "skipped":
                self.assertTrue(allowed(case["reason"], gpu_matrix.SKIPS), f"{name}: skipped: {case['reason']}")
                self.skipped[f"{case['unit']}: {case['reason'][:120]}"] += 1
                continue
            self.assertEqual(verdict, "pass", f"{name}: {case['reason']}")
            for oracle, result in case["oracles"].items():
                if result["verdict"] != "pass":
                    self.assertTrue(allowed(result["text"], gpu_matrix.SKIPS), f"{name}: {oracle}: {result['verdict']}: {result['text']}")
        self.assertEqual(seen, set(of), where)

    def units_between(self, transport, ranks, hosts=1, order="lazy", of=None):
        others = [unit for unit in of or units() if unit not in gpu_matrix.STEPS]
        accept = [unit for unit in others if has_transport(unit)]
        flags = ["--ranks", str(ranks)]
        self.expect_ruled(accept, [*flags, "--transport", transport], ranks, hosts, order)
        if transport == "cuda_ipc" and hosts == 1:  # once
            self.expect_ruled([unit for unit in others if unit not in accept], flags, ranks, hosts, order)

    def steps_between(self, transport, ranks, hosts=1, order="lazy", of=None, grids=None, sequences=8, more=(), one=False):
        """Runs steps of each grid; one: of gpt_step a case of each model and ZeRO stage."""
        for grid in grids or gpu_matrix.GRIDS[ranks]:
            flags = [*gpu_matrix.grid_flags(grid, sequences), "--transport", transport, *more]
            with self.subTest(grid=grid):
                self.expect_ruled(of or gpu_matrix.STEPS, one_case("gpt_step", flags) if one else flags, ranks, hosts, order)

    def every_zero_stage(self, transport, order="lazy", more=()):
        before = self.counts["pass"]
        self.steps_between(transport, 8, order=order, of=["gpt_step"], grids=[gpu_matrix.ZERO_GRID],
                           more=["--zero-stage", "0,1,2,3", "--model", "tiny", "--sequence-parallel", "on", *more], one=True)
        self.assertEqual(self.counts["pass"] - before, 4)  # another axis would make it longer

    def two_hosts(self):
        """Skips the test if this machine cannot have two hosts."""
        done = self.launch(["all_reduce", "--profile", "smoke", *SHORT, "--ranks", "2", "--transport", "nccl", "--bytes", "8", "--algorithm", "ring",
                            "--dtype", "float"], 2, 2, "lazy")
        hosts = done.returncode == 0 and read_run(self.path("run"))["benchmarks"][0]["verdict"] == "pass"
        if not hosts and os.environ.get("SHARDMARK_TWO_HOSTS") == "required":
            self.fail(done.stdout + done.stderr)
        if not hosts:
            self.skipTest(f"two hosts: exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-200:]}")


class CrossSection(Gpus):
    """A minute of two cores. OverDeviceLinks of the suite's tests covers layers, links and other steps."""
    MOST = 12
    SOME = ["all_to_all", "loss_scaler", "zero_options"]

    def test_some_units_over_both_links(self):
        for transport in gpu_matrix.TRANSPORTS:
            with self.subTest(transport=transport):
                self.units_between(transport, 4, of=self.SOME)

    def test_units_of_one_gpu(self):
        self.units_between("cuda_ipc", 1, of=["gemm", "memory_bandwidth", "self_attention"])

    def test_a_step_of_all_degrees(self):
        self.every_zero_stage("nccl", more=gpu_matrix.OURS)

    def test_other_models(self):
        self.steps_between("nccl", 4, of=["gpt_step"], grids=[(2, 2, 1)], sequences=2,
                           more=["--model", "bert_tiny,t5_tiny", "--zero-stage", "1", "--sequence-parallel", "on", *gpu_matrix.OURS], one=True)

    def test_streams_in_another_order(self):
        for transport, seed in (("cuda_ipc", 1), ("nccl", 2)):
            with self.subTest(transport=transport):
                self.units_between(transport, 2, order=f"random:{seed}", of=["mlp", "zero_options"])

    def test_two_hosts(self):
        self.two_hosts()
        self.units_between("nccl", 4, hosts=2, of=["all_to_all", "zero_options"])
        self.steps_between("nccl", 2, hosts=2, of=["gpt_step"], grids=[(1, 1, 2)], more=["--model", "tiny"], one=True)


class Matrix(Gpus):
    """Hours of two cores. A training step takes ten of its cases to each launch, and others to the next one."""

    def test_units(self):
        for transport in gpu_matrix.TRANSPORTS:
            for ranks in gpu_matrix.RANKS:
                with self.subTest(transport=transport, ranks=ranks):
                    self.units_between(transport, ranks)

    def test_steps(self):
        for transport in gpu_matrix.TRANSPORTS:
            for ranks in gpu_matrix.RANKS:
                self.steps_between(transport, ranks)

    def test_two_hosts(self):
        self.two_hosts()
        for ranks in gpu_matrix.RANKS[1:]:
            with self.subTest(ranks=ranks):
                self.units_between("nccl", ranks, hosts=2)
                self.steps_between("nccl", ranks, hosts=2)
        self.units_between("cuda_ipc", 2, hosts=2, of=["all_reduce"])

    def test_seeds(self):
        for seed in gpu_matrix.SEEDS:
            transport, ranks = gpu_matrix.TRANSPORTS[seed % 2], gpu_matrix.RANKS[1 + seed // 2 % 3]
            with self.subTest(seed=seed):
                self.units_between(transport, ranks, order=f"random:{seed}")

    def test_every_zero_stage_in_a_step_of_all_degrees(self):
        for order in ("lazy", *(f"random:{seed}" for seed in gpu_matrix.SEEDS)):
            for transport in gpu_matrix.TRANSPORTS if order == "lazy" else ["nccl"]:
                with self.subTest(order=order, transport=transport):
                    self.every_zero_stage(transport, order)
                    self.every_zero_stage(transport, order, more=gpu_matrix.OURS)


if __name__ == "__main__":
    # A preset that sets the variable has virtual GPUs, and must say so.
    if "SHARDMARK_VIRTUAL_GPUS" not in os.environ and not re.search(r"^ *CUDA +virtual", shardmark("version").stdout, re.M):
        print("skipped: the program has no virtual GPUs")
        sys.exit(77)
    unittest.main(verbosity=2)
