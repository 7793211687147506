#!/usr/bin/env python3
"""Bad input gives a one-line error that suggests the nearest valid input, an exit code, and no files."""

import os
import sys
import unittest

from process import LAUNCHER, TemporaryFolder, shardmark


class BadInput(TemporaryFolder):
    def refused(self, code, words, *says, env=None):
        """Checks the one-line error with its suggestion, the exit code, and that no files are left."""
        out = self.path("run")
        if words[0] == "run" and "--out" not in words:
            words = [*words, "--out", out]
        done = shardmark(*words, env=env)
        self.assertEqual(done.returncode, code, done.stderr)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for text in says:
            self.assertIn(text, lines[0])
        self.assertFalse(os.path.exists(out), "nothing may be left half-written")

    def test_misspelt_words_name_the_nearest(self):
        self.refused(2, ["rnu"], "unknown command 'rnu'", "'run'")
        self.refused(2, ["run", "al_reduce"], "unknown unit 'al_reduce'", "'all_reduce'")
        self.refused(2, ["run", "all_reduce", "--byts", "8"], "unknown flag '--byts'", "'--bytes'")
        self.refused(2, ["run", "gpt_step", "--tensor-parallel-mode", "4d"], "tensor-parallel-mode", "'4d'", "'1d'")
        self.refused(2, ["run", "all_reduce", "--dtype", "flot"], "'flot'", "'float'")
        self.refused(2, ["run", "all_reduce", "--algorithm", "rign"], "'rign'", "'ring'")
        self.refused(2, ["run", "--profile", "quik"], "'quik'", "'quick'")
        self.refused(2, ["run", "--device", "cudaa"], "'cudaa'", "'cuda'")
        self.refused(2, ["run", "all_reduce", "--bytes", "8x"], "8x")
        self.refused(2, ["run", "--benchmark_filtr=x"], "benchmark_filtr")

    def test_degrees_that_do_not_fit(self):
        gpt = ["run", "gpt_step"]
        self.refused(2, [*gpt, "--tp", "3", "--ranks", "3", "--pp", "1", "--dp", "1"], "3", "heads")
        self.refused(2, [*gpt, "--ranks", "6", "--tp", "2", "--pp", "2", "--dp", "2"], "ranks 6", "= 8")
        self.refused(2, [*gpt, "--ranks", "1", "--global-batch-size", "7", "--micro-batch-size", "2"],
                     "global-batch-size 7", "8")

    def test_algorithms_of_a_step(self):
        gpt = ["run", "gpt_step", "--ranks", "4", "--tp", "2", "--pp", "1", "--dp", "2"]
        self.refused(2, [*gpt, "--tp-algorithm", "libary"], "tp-algorithm", "'libary'", "'library'")
        self.refused(2, [*gpt, "--dp-algorithm", "all_reduc=ring"], "dp-algorithm", "'all_reduc'", "'all_reduce'")
        self.refused(2, [*gpt, "--dp-algorithm", "all_reduce=library,all_gather=rng"], "all_gather algorithm 'rng'", "'ring'")
        self.refused(2, [*gpt, "--tp-algorithm", "library", "--transport", "shared_memory"],
                     "tp-algorithm library requires transport mpi or nccl (got shared_memory)")

    def test_ways_to_hold_activations(self):
        gpt = ["run", "gpt_step", "--ranks", "2", "--pp", "1", "--dp", "1"]
        self.refused(2, ["run", "gpt_step", "--tp", "1", "--sequence-parallel", "1"], "sequence-parallel requires tp 2 or more")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "selectiv"], "'selective'")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "none", "--recompute-method", "block"], "recompute-granularity full")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "full", "--recompute-num-layers", "5"],
                     "recompute-num-layers is 5", "expected 1 to 2")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "full", "--sequence-parallel", "1",
                         "--distribute-saved-activations", "1"], "sequence-parallel", "one of the two")
        self.refused(2, [*gpt, "--tp", "2", "--recompute-granularity", "none", "--cpu-checkpointing", "1"], "cpu-checkpointing", "granularity full")

    def test_data_files(self):
        gpt = ["run", "gpt_step", "--ranks", "1"]
        self.refused(2, [*gpt, "--data", self.path("missing.txt")], "missing.txt")
        with open(self.path("text.txt"), "w", encoding="utf-8") as file:
            file.write("some text")
        self.refused(2, [*gpt, "--data", self.path("text.tx")], "text.tx", "did you mean", "text.txt")
        self.refused(2, [*gpt, "--data", self.path("text.txt")], "text.txt has 9 tokens", "one sequence")
        open(self.path("empty.txt"), "w", encoding="utf-8").close()
        self.refused(2, [*gpt, "--data", self.path("empty.txt")], "empty.txt", "empty")
        self.refused(2, [*gpt, "--data", self.folder.name], "directory")
        open(self.path("half.idx"), "w", encoding="utf-8").close()
        self.refused(2, [*gpt, "--data", self.path("half")], "half.idx", "empty")

    def test_weights_and_token_files(self):
        gpt = ["run", "gpt_step", "--ranks", "1"]
        text = self.path("text.safetensors")
        with open(text, "w", encoding="utf-8") as file:
            file.write("not a header, nor tensors")
        self.refused(2, [*gpt, "--load", text], "text.safetensors", "length of its header")
        self.refused(2, [*gpt, "--load", text[:-1]], "did you mean", "text.safetensors")
        other = self.path("other.safetensors")
        header = b'{"wte.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'
        with open(other, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + bytes(16))
        self.refused(2, [*gpt, "--load", other], "other.safetensors has no tensor")
        self.refused(2, ["run", "gpt_step", "--ranks", "1,2", "--save", self.path("w.safetensors")], "exactly one case of gpt_step")
        self.refused(2, ["run", "barrier", "--save", text], "exactly one case of gpt_step", "got 0")
        self.refused(2, ["run", "barrier", "--load", text], "text.safetensors")
        self.refused(2, ["data", text], "--out")
        self.refused(2, ["data", text, "--out", self.path("no/pair")], "no/pair.bin")
        self.refused(2, ["data", self.path("text"), "--out", self.path("pair")], "cannot read")

    def test_loss_curves(self):
        speed = ["run", "training_speed", "--ranks", "1"]
        curve = self.path("curve.json")
        self.refused(2, [*speed, "--reference", "non"], "'non'", "'none'")
        self.refused(2, [*speed, "--reference", "stored"], "--reference stored requires --reference-file")
        self.refused(2, [*speed, "--reference-file", curve], "--reference-file requires --reference stored (got cpu)")
        self.refused(2, [*speed, "--reference", "stored", "--reference-file", curve], "cannot read", "curve.json")
        with open(curve, "w", encoding="utf-8") as file:
            file.write('{"format": "shardmark loss curve 2"}')
        self.refused(2, [*speed, "--reference", "stored", "--reference-file", curve], "curve.json: format is")
        self.refused(2, ["run", "barrier", "--reference", "none"], "a case of a training step")
        self.refused(2, ["run", "gpt_step", "--ranks", "1,2", "--save-reference", curve], "exactly one case of a training step")

    def test_traffic_files(self):
        traffic = ["run", "all_to_all_v", "--traffic"]
        self.refused(2, [*traffic, "skewd"], "'skewd'", "'skewed'")
        self.refused(2, [*traffic, self.path("missing.txt")], "missing.txt")
        with open(self.path("traffic.txt"), "w", encoding="utf-8") as file:
            file.write("# bytes\n0 64\n8 0\n")
        self.refused(2, [*traffic, self.path("traffic.txt"), "--ranks", "3"], "for 2 ranks, not 3")
        self.refused(2, [*traffic, self.path("traffic.txt"), "--bytes", "8"], "64 bytes", "not 8")
        with open(self.path("bad.txt"), "w", encoding="utf-8") as file:
            file.write("1 2\n3 x\n")
        self.refused(2, [*traffic, self.path("bad.txt")], "bad.txt, line 2", "'x'")
        self.refused(2, ["collective", "alltoallv", "--ranks", "2", "--traffic", self.path("bad.txt")],
                     "bad.txt, line 2", "'x'")

    def test_configurations(self):
        with open(self.path("ds_config.json"), "w", encoding="utf-8") as file:
            file.write('{"train_batch_size": 6, "zero_optimization": {"stge": 2}}')
        plan = ["plan", "--config", self.path("ds_config.json"), "--gpus", "4"]
        self.refused(2, plan, "ds_config.json", "zero_optimization.stge", "'zero_optimization.stage'")
        self.refused(2, [*plan, "--ignore-unknown-keys"], "train_batch_size 6", "data-parallel size 4")
        self.refused(2, ["plan", "--gpus", "4"], "no model")
        self.refused(2, ["predict", "--model", "gpt2_124m", "--cluster", "dgx_h10"], "'dgx_h100'")
        self.refused(2, ["predict", "--model", "gpt2_124m", "--software", "megatron_cor"], "'megatron_core'")
        self.refused(2, ["predict", "--parameters", "7B"], "model's shape")
        with open(self.path("codes.json"), "w", encoding="utf-8") as file:
            file.write('{"train_batch_size": 8, "optimizer": {"type": "Muon"}, '
                       '"zero_optimization": {"stage": 3, "zero_quantized_gradients": true}}')
        predict = ["predict", "--model", "gpt2_124m", "--gpus", "8"]
        self.refused(2, [*predict, "--config", self.path("codes.json")], "zero_quantized_gradients", "than muon")
        self.refused(2, [*predict, "--bf16", "--fp8-format", "hybrid", "--cluster", "dgx_a100"], "gpu.fp8_tflops")
        self.refused(2, ["plan", "--hiden-size", "64"], "'--hidden-size'")
        self.refused(2, ["plan", "--confg", "x"], "'--config'")
        self.refused(2, ["plan", "--parameters", "7B", "--json", self.path("no/plan.json")], "no/plan.json")
        self.refused(2, ["plan", "--parameters", "7 billion"], "7 billion", "7B")
        self.refused(2, ["plan", "--megatron-arguments", self.path("missing")], "missing")

    def test_comparisons(self):
        os.mkdir(self.path("empty"))
        self.refused(2, ["compare", self.path("empty")], "BASE and NEW", "1 is given")
        self.refused(2, ["compare", self.path("empty"), self.path("none")], "BASE", "empty and its folders contain no run.json")
        self.refused(2, ["compare", self.path("none"), self.path("empty")], "BASE: no folder at")
        self.refused(2, ["compare", "a", "b", "--factr", "nccl"], "'--factr'", "'--factor'")
        self.refused(2, ["compare", "a", "b", "--fail-on", "inconclusiv"], "'inconclusiv'", "'inconclusive'")
        self.refused(2, ["compare", "a", "b", "--json", self.path("no/c.json")], "no/c.json")
        self.refused(2, ["compar", "a", "b"], "'compar'", "'compare'")
        self.refused(2, ["ab", "--a", "NCCL ALGO=Ring"], "--a", "'NCCL'", "NAME=VALUE")
        self.refused(2, ["ab", "al_reduce", "--out", self.path("ab")], "'al_reduce'", "'all_reduce'")
        self.assertFalse(os.path.exists(self.path("ab")))
        self.refused(2, ["ab", "barrier", "--out", self.folder.name], "not empty")

    def test_scaling(self):
        self.refused(2, ["scale", "training_speed", "--strong"], "--axis")
        self.refused(2, ["scale", "training_speed", "--axis", "dq", "--strong"], "'dq'", "'dp'")
        self.refused(2, ["scale", "training_speed", "--axis", "dp"], "--strong", "--weak")
        self.refused(2, ["scale", "training_sped", "--axis", "dp", "--weak"], "'training_sped'", "'training_speed'")
        self.refused(2, ["scale", "training_speed", "--axis", "dp", "--weak", "--dp", "2"], "--dp", "--ranks")
        self.refused(2, ["scale", "training_speed", "--axis", "dp", "--weak", "--tp", "2", "--ranks", "2,3"], "product 2")
        self.refused(2, ["scale", "training_speed", "--axis", "dp", "--weak", "--ranks", "4"], "--ranks is 4", "1,2,4")

    def test_hostfiles(self):
        small = ["run", "all_reduce", "--ranks", "4", "--bytes", "8", "--hostfile"]
        self.refused(2, [*small, self.path("missing")], "hostfile", "missing")
        with open(self.path("hosts"), "w", encoding="utf-8") as file:
            file.write("localhost slots=2\n")
        self.refused(2, [*small, self.path("hosts")], "4 ranks", "2 slots")
        with open(self.path("hosts"), "a", encoding="utf-8") as file:
            file.write("worker-2 slot=2\n")
        self.refused(2, [*small, self.path("hosts")], "hosts, line 2", "slots=N")

    def test_near_ranks_divide_all(self):
        self.refused(2, ["run", "all_reduce", "--inner", "3", "--ranks", "8", "--algorithm", "mesh"],
                     "inner 3 does not divide 8 ranks")

    def test_output_folders(self):
        blocked = self.path("a_file")
        open(blocked, "w", encoding="utf-8").close()
        small = ["run", "all_reduce", "--ranks", "1", "--bytes", "8"]
        self.refused(2, [*small, "--out", blocked], "a_file")
        self.refused(2, [*small, "--out", "/proc/shardmark"], "/proc/shardmark")

    def test_missing_launcher_and_device(self):
        self.refused(3, ["run", "all_reduce"], os.path.basename(LAUNCHER[0]), env={"PATH": "/nonexistent"})
        self.refused(3, ["run", "gemm", "--ranks", "1", "--device", "cuda"], "cuda",
                     env={"CUDA_VISIBLE_DEVICES": "-1"})

    def test_reports_of_no_run(self):
        self.refused(2, ["report", self.path("missing")], "missing")
        os.mkdir(self.path("torn"))
        with open(self.path("torn/run.json"), "w", encoding="utf-8") as file:
            file.write('{"context": {')
        self.refused(2, ["report", self.path("torn")], "run.json")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
