#!/usr/bin/env python3
"""scripts/accept and slurm/acceptance.sbatch test the GPUs where they find them, and all of a job's ranks."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


class Accept(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        os.mkdir(self.path("scripts"))
        shutil.copy(os.path.join(HERE, "accept"), self.path("scripts"))
        for name in ("install", "build"):
            self.script(f"scripts/{name}", "exit 0")
        for preset in ("cuda", "release"):
            self.script(f"build/{preset}/shardmark", f'echo "{preset}:" "$@"')

    def path(self, name):
        return os.path.join(self.root, name)

    def script(self, name, line):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{line}\n")
        os.chmod(self.path(name), 0o755)

    def ran(self, *words, has_gpu):
        """Returns the command of the program."""
        self.script("scripts/find_cuda", f"exit {0 if has_gpu else 1}")
        done = subprocess.run([self.path("scripts/accept"), *words], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1].split()

    def test_tests_the_gpus(self):
        self.assertEqual(self.ran(has_gpu=True)[:4], ["cuda:", "run", "--device", "cuda"])

    def test_without_a_gpu_tests_the_host(self):
        command = self.ran(has_gpu=False)
        self.assertEqual(command[:2], ["release:", "run"])
        self.assertNotIn("--device", command)

    def test_the_callers_device_replaces_the_default(self):
        for words in (["--device", "host"], ["--device=host"]):
            command = self.ran(*words, has_gpu=True)
            self.assertEqual(command[0], "cuda:")
            self.assertNotIn("cuda", command[1:])

    def job(self, *words, env=None, codes=(0, 0)):
        """Returns the exit code of a Slurm job of 16 ranks, and the commands of its runs."""
        self.script("bin/srun", 'shift 2\necho "$@" >>"$LOG"\n'
                                f'[ "$(wc -l <"$LOG")" = 1 ] && exit {codes[0]}\nexit {codes[1]}')
        log = self.path("log")
        if os.path.exists(log):
            os.remove(log)
        done = subprocess.run(["bash", os.path.join(HERE, "slurm", "acceptance.sbatch"), *words], check=False,
                              env={"PATH": self.path("bin") + ":" + os.environ["PATH"], "LOG": log, "SLURM_SUBMIT_DIR": "/clone",
                                   "SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", **(env or {})})
        with open(log, encoding="utf-8") as file:
            return done.returncode, [line.split() for line in file]

    def test_a_job_tests_all_its_ranks(self):
        code, (profile, all_ranks) = self.job()
        self.assertEqual(code, 0)
        self.assertEqual(" ".join(profile), "/clone/build/release/shardmark run --profile acceptance --out results/runs/slurm-7")
        self.assertEqual(all_ranks[-4:], ["--ranks", "16", "--out", "results/runs/slurm-7-all-ranks"])

    def test_a_job_tests_its_gpus(self):
        for variable in ("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"):
            for command in self.job(env={variable: "8"})[1]:
                self.assertEqual(command[:4], ["/clone/build/cuda/shardmark", "run", "--device", "cuda"])

    def test_the_words_of_a_job_are_its_only_run(self):
        _, commands = self.job("gemm", "--device", "host", env={"SLURM_JOB_GPUS": "0"})
        self.assertEqual(commands, [["/clone/build/cuda/shardmark", "run", "gemm", "--device", "host", "--out", "results/runs/slurm-7"]])

    def test_the_first_rejection_is_the_verdict(self):
        for codes, verdict in (((1, 0), 1), ((0, 4), 4), ((3, 1), 3)):
            code, commands = self.job(codes=codes)
            self.assertEqual((code, len(commands)), (verdict, 2))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
