#!/usr/bin/env python3
"""The program on virtual GPUs, as on a node with GPUs: it starts, uses them, and never accepts hardware."""

import os
import re
import subprocess
import sys
import unittest

from process import LAUNCHER, NO_FIGURES, PROGRAM, TemporaryFolder, read_run, shardmark

QUICK = ["--max-seconds", "0.01", "--timeout", "30"]


class VirtualGpu(TemporaryFolder):
    def run_units(self, *words, gpus="2", code=0):
        done = shardmark("run", *words, "--device", "cuda", *QUICK, "--out", self.path("run"), timeout=300,
                         env={**NO_FIGURES, "SHARDMARK_VIRTUAL_GPUS": gpus})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def cases(self):
        return read_run(self.path("run"))["benchmarks"]

    def test_ranks_use_cuda(self):
        # The ranks are forked. CUDA does not work in a process that was forked after its parent had used it.
        for ranks in ("1", "2"):
            self.run_units("all_reduce", "--transport", "cuda_ipc", "--ranks", ranks, "--bytes", "8,100000")
            self.assertEqual({case["verdict"] for case in self.cases()}, {"pass"})
            self.assertTrue(all(case["case"]["transport"] == "cuda_ipc" for case in self.cases()))

    def test_a_run_says_that_the_gpus_are_virtual(self):
        text = self.run_units("all_reduce", "gemm", "--transport", "cuda_ipc", "--algorithm", "ring", "--ranks", "2", "--bytes", "8",
                              "--dtype", "float", "--shape", "64x64x64")
        self.assertRegex(text, r"\nPASSED ON VIRTUAL GPUS: \d+ passed, 0 failed, 0 skipped; no hardware was tested\n")
        self.assertNotIn("ACCEPTED", text)
        run = read_run(self.path("run"))
        self.assertEqual(run["context"]["gpus"], {"seen": 2, "tested": 2, "virtual": True})
        self.assertEqual(run["context"]["rates"], {})
        for case in run["benchmarks"]:
            for claim in ("limit_s", "limit_fraction", "busbw_GBps", "gflops", "speedup_over_library"):
                self.assertNotIn(claim, case, case["name"])
        self.assertIn("virtual", shardmark("version").stdout)

    def test_gpus_without_ranks_are_named(self):
        text = self.run_units("gemm", "--ranks", "2", "--dtype", "float", "--shape", "64x64x64", gpus="3")
        self.assertIn("; NOT TESTED: 1 of 3 virtual GPUs", text)

    def test_the_text_of_cuda_reaches_the_user(self):
        done = shardmark("run", "gemm", "--ranks", "1", "--device", "cuda", "--out", self.path("run"),
                         env={"SHARDMARK_VIRTUAL_GPUS": "0"})
        self.assertEqual(done.returncode, 3)
        self.assertIn("no CUDA-capable device is detected (cudaErrorNoDevice)", done.stderr)

    def test_a_broken_gpu_ends_the_run_at_the_case_that_broke_it(self):
        text = self.run_units("gemm", "memory_bandwidth", "--ranks", "2", "--dtype", "float", "--bytes", "1MiB", "--shape", "64x64x64",
                              gpus="2,fault=1:3", code=4)
        self.assertRegex(text, r"rank 1[^\n]*gemm[^\n]* broke cuda:1: [^\n]*unspecified launch failure")
        run = read_run(self.path("run"))
        self.assertEqual(run["context"]["status"], "aborted")
        self.assertEqual(run["context"]["lost_rank"], 1)
        self.assertEqual(len(run["benchmarks"]), 1)

    def each_sees_one(self, *words, gpus="2"):
        """Runs two ranks, each of which sees one GPU, as with `srun --gpus-per-task=1`."""
        command = []
        for gpu in ("0", "1"):
            command += [":"] if command else LAUNCHER
            command += ["-n", "1", "env", f"CUDA_VISIBLE_DEVICES={gpu}", PROGRAM, "run", *words, "--device", "cuda", *QUICK,
                        "--out", self.path("run")]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, **NO_FIGURES, "SHARDMARK_VIRTUAL_GPUS": gpus})

    def test_one_visible_gpu_for_each_rank(self):
        words = ["all_reduce", "--ranks", "2", "--bytes", "100000", "--dtype", "float", "--algorithm", "ring,direct"]
        done = self.each_sees_one(*words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        verdicts = {(case["case"]["transport"], case["verdict"]) for case in self.cases()}
        self.assertIn(("cuda_ipc", "pass"), verdicts)
        self.assertEqual({transport for transport, _ in verdicts}, {"cuda_ipc", "nccl"})
        self.assertEqual(read_run(self.path("run"))["context"]["gpus"]["tested"], 2)

    def test_hidden_gpus_without_peer_access_are_a_reason_to_skip(self):
        words = ["all_reduce", "gemm", "--transport", "cuda_ipc", "--ranks", "2", "--bytes", "8", "--dtype", "float", "--algorithm", "ring",
                 "--shape", "64x64x64"]
        done = self.each_sees_one(*words, gpus="2,peers=none")
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, 3, text)
        self.assertRegex(text, r"REJECTED: all communication was skipped: \d+ passed, 0 failed, \d+ skipped")
        self.assertIn("peer access is not supported", self.cases()[0]["reason"])

    def test_transports_that_a_unit_cannot_use_are_refused(self):
        for unit in ("compressed_all_reduce", "error_feedback", "pipeline_bubble"):
            done = shardmark("run", unit, "--transport", "nccl", "--device", "cuda", "--out", self.path("refused"))
            self.assertEqual(done.returncode, 2, unit + done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"unit sends host memory; use shared_memory or mpi")
            self.assertFalse(os.path.exists(self.path("refused")))

    def test_collective_on_device_buffers(self):
        for operation in ("all_reduce", "all_gather", "reduce"):
            done = shardmark("collective", operation, "--ranks", "2", "--device", "cuda", "--transport", "cuda_ipc",
                             "-b", "8", "-e", "64K", "-f", "16", "-n", "2", "-w", "1")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, r"\[cuda\] cuda:1: virtual GPU")
            self.assertIn("# virtual GPUs: the times are not those of hardware\n", done.stdout)
            self.assertIn("# Out of bounds values : 0 OK", done.stdout)
            rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#") and line]
            self.assertEqual({len(row) for row in rows}, {13})
            times = re.findall(r"^# device time \(us\): out-of-place +([0-9.]+), in-place +([0-9.]+)$", done.stdout, re.M)
            self.assertEqual(len(times), len(rows))

    def test_a_message_larger_than_the_memory_is_an_error(self):
        done = shardmark("collective", "all_reduce", "--ranks", "2", "--device", "cuda", "-b", "16G", "-e", "16G",
                         env={"SHARDMARK_VIRTUAL_GPUS": "2,memory=64MiB"})
        self.assertNotIn(done.returncode, (0, 7), done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"out of memory on cuda:\d[^\n]*cannot allocate 17179869184 bytes of buffers")

    def test_collective_as_a_graph(self):
        words = ["--ranks", "2", "--device", "cuda", "-b", "8", "-e", "4K", "-f", "8", "-n", "3", "-w", "0", "-G", "2"]
        for more in ([], ["--algorithm", "library"]):
            done = shardmark("collective", "all_reduce", *words, *more)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(" validation: 1 graph: 2 unalign: 0\n", done.stdout)
            self.assertIn("# Out of bounds values : 0 OK", done.stdout)
        done = shardmark("collective", "all_reduce", *words, "--transport", "cuda_ipc")
        self.assertEqual(done.returncode, 2)
        self.assertIn("-G,--cudagraph 2 requires --transport nccl (got cuda_ipc)", done.stderr)

    def test_collective_on_registered_buffers(self):
        for operation in ("all_reduce", "gather", "alltoallv"):
            for kind in ("1", "2"):
                for more in ([], ["--algorithm", "library"]):
                    done = shardmark("collective", operation, "--ranks", "2", "--device", "cuda", "-b", "8", "-e", "4K", "-f", "16",
                                     "-n", "2", "-R", kind, *more)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertIn(f"# -R {kind}: memory of ncclMemAlloc, ", done.stdout)
                    self.assertIn("# Out of bounds values : 0 OK", done.stdout)

    def test_graphs_in_a_sweep(self):
        self.run_units("all_reduce", "send_receive", "--transport", "nccl", "--ranks", "2", "--bytes", "8,100000", "--dtype", "float",
                       "--graph", "on")
        self.assertEqual({(case["case"]["graph"], case["verdict"]) for case in self.cases()}, {("on", "pass")})
        done = shardmark("run", "all_reduce", "--transport", "cuda_ipc", "--graph", "on", "--device", "cuda", "--out", self.path("refused"))
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("graph on requires transport nccl (got cuda_ipc)", done.stderr)


if __name__ == "__main__":
    if not re.search(r"^ *CUDA +virtual", shardmark("version").stdout, re.M):
        print("skipped: the program has no virtual GPUs")
        sys.exit(77)
    unittest.main(verbosity=2)
