"""The steps of scripts/check_gpu: the commands of each, for a machine."""
import dataclasses
import os
import shutil

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all",
               "all_to_all_v", "send_receive"]
LAYERS = ["mlp", "self_attention", "transformer_block", "vocabulary_parallel_embedding", "vocabulary_parallel_cross_entropy"]


class Lacking(Exception):
    """A step cannot run here, with the reason."""


@dataclasses.dataclass
class Part:
    """A command of a step. It passes if it ends with `code` and prints `says`."""
    name: str
    command: list
    code: int = 0
    says: str = ""
    environment: dict = dataclasses.field(default_factory=dict)


class Steps:
    """The parts of each step, for a machine and a record's folder."""

    ABOUT = {
        "start": "a rank starts and uses a GPU",
        "one_gpu": "matrix products, memory, optimizers and copies on one GPU",
        "unit_tests": "the tests of kernels, attention, matrix products and links",
        "shared_gpu": "all collectives over cuda_ipc between ranks on one GPU; a rank that hangs is named",
        "armed": "the same in the stream's time, behind a gate",
        "training": "layers, the training step and ZeRO with staged messages, offloading, and one_gpu again",
        "sanitizer": "compute-sanitizer finds no wrong access, race or barrier",
        "several_gpus": "nccl, its own collectives and ours, and the training step between GPUs",
    }

    def __init__(self, machine, out):
        self.machine, self.out = machine, out

    def sizes(self, real, small):
        return small if self.machine.virtual else real

    def run(self, name, *words, **others):
        small = ["--max-seconds", "0.01"] if self.machine.virtual and "--max-seconds" not in words else []
        folder = os.path.join(self.out, "runs", name)
        return Part(name, [self.machine.program, "run", *words, *small, "--device", "cuda", "--out", folder], **others)

    def on_the_first(self):
        """Hides all GPUs but one."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        return {"CUDA_VISIBLE_DEVICES": visible}

    def hung(self, rank, *words, ranks=2, environment=None):
        """A rank hangs and the others wait on their GPUs. The report must name it."""
        name = f"hang_of_rank_{rank}_" + words[words.index("--transport") + 1]
        return self.run(name, "all_reduce", *words, "--ranks", str(ranks), "--dtype", "float", "--bytes", self.sizes("1MiB", "64KiB"),
                        "--timeout", "10", "--inject", f"hang:rank={rank},iteration=1", code=4, says=f"lost rank: rank {rank} ",
                        environment=environment or {})

    def start(self):
        return [self.run("start", "all_reduce", "--ranks", "1", "--transport", "cuda_ipc", "--dtype", "float",
                         "--bytes", self.sizes("8,1MiB,64MiB", "8,64KiB"))]

    def one_gpu(self, again=""):
        return [
            self.run(f"gemm{again}", "gemm", "--ranks", "1", "--dtype", "float,bfloat16",
                     *self.sizes([], ["--shape", "64x64x64"])),
            self.run(f"memory{again}", "memory_bandwidth", "--ranks", "1", "--dtype", "float,bfloat16",
                     "--kernel", "copy,triad,add,add_to_two", "--bytes", self.sizes("64MiB,256MiB", "1MiB")),
            self.run(f"optimizers{again}", "optimizer_step", "--ranks", "1", "--dtype", "float,bfloat16",
                     "--elements", self.sizes("1048576", "10007")),
            # The largest is for the time: a host takes seconds to judge most of the others.
            self.run(f"adamw{again}", "optimizer_step", "--ranks", "1", "--dtype", "float,bfloat16", "--optimizer", "adamw",
                     "--elements", self.sizes("33554432", "10007")),
        ]

    def unit_tests(self):
        if not self.machine.tests:
            raise Lacking("no unit tests next to the program; --tests DIR names a build folder of the preset cuda")
        filters = {"machine": "*", "collectives": "*Cuda*:*Nccl*:*StreamedLink*", "zero": "*Cuda*", "pipeline": "*Cuda*:*DeviceLinks*",
                   "suite": "*DeviceLinks*:*Cuda*:*StepGraph*"}
        if self.machine.virtual:
            filters = {"machine": "Cuda*"}
        parts = []
        for room, names in filters.items():
            test = os.path.join(self.machine.tests, room, f"{room}_test")
            if os.access(test, os.X_OK):
                parts.append(Part(f"{room}_test", [test, f"--gtest_filter={names}"], says="[  PASSED  ]"))
        return parts

    def shared_gpu(self):
        alone = self.on_the_first()
        parts = []
        # Ranks that share a GPU are checked but not timed, so sampling is short and every algorithm runs.
        for dtype, sizes in self.sizes({"float": "8,1000,1MiB,16MiB", "bfloat16": "8,1MiB"}, {"float": "1000"}).items():
            parts.append(self.run(f"cuda_ipc_{dtype}", *COLLECTIVES, "--profile", "acceptance", "--transport", "cuda_ipc",
                                  "--ranks", self.sizes("2,4", "2"), "--dtype", dtype, "--bytes", sizes,
                                  "--max-seconds", self.sizes("0.02", "0.001"), environment=alone))
        dtypes = self.sizes("int8,uint8,int32,uint32,int64,uint64,half,double", "int8,half")
        parts.append(self.run("cuda_ipc_dtypes", "all_reduce", "reduce_scatter", "reduce", "--profile", "acceptance",
                              "--transport", "cuda_ipc", "--ranks", "3", "--dtype", dtypes, "--reduction", "sum,prod,max,min,avg",
                              "--bytes", self.sizes("100000", "1000"), "--algorithm", "ring,direct", "--max-seconds", "0.02",
                              environment=alone))
        parts.append(self.run("barrier", "barrier", "--transport", "cuda_ipc", "--ranks", "2,4", "--max-seconds", "0.05",
                              environment=alone))
        for rank in (0, 1):
            parts.append(self.hung(rank, "--transport", "cuda_ipc", "--algorithm", "ring,direct", environment=alone))
        return parts

    def armed(self):
        return [self.run("armed", *COLLECTIVES, "--transport", "cuda_ipc", "--ranks", self.sizes("2,4", "2"), "--dtype", "float",
                         "--bytes", self.sizes("8,1MiB,16MiB", "1000"), "--timing", "armed",
                         "--max-seconds", self.sizes("0.2", "0.01"), environment=self.on_the_first())]

    def training(self):
        alone, staged = self.on_the_first(), ["--transport", "shared_memory", "--ranks", "2"]
        offloads = ["--offload_optimizer", "none,cpu,nvme", "--offload_param", "none,cpu,nvme", "--sub_group_size", "500"]
        return [
            self.run("layers", *LAYERS, "--profile", "smoke", *staged, "--dtype", "float,bfloat16", "--max-seconds", self.sizes("0.2", "0.01"),
                     environment=alone),
            self.run("gpt_step", "gpt_step", "--profile", "smoke", "--transport", "shared_memory",
                     "--pipeline-model-parallel-size", "1", environment=alone),
            self.run("zero_offload", "zero_step", *staged, "--zero-stage", "1,3", "--dtype", "float,bfloat16", "--parameters", "10007",
                     *offloads, "--nvme_path", self.out, "--max-seconds", "0.1", environment=alone),
            self.run("offload_step", "offload_step", "--profile", "smoke", environment=alone),
            self.graph("1", environment=alone),
            # After streams of their own: freeing memory must not wait for them.
            *self.one_gpu("_again"),
        ]

    def graph(self, ranks, **how):
        return self.run(f"graph_{ranks}", "gpt_step", "--profile", "acceptance", "--filter", "graph:on", "--ranks", ranks,
                        "--model", self.sizes("small", "tiny"), "--dtype", "bfloat16", "--zero-stage", "1", **how)

    def sanitizer(self):
        machine = self.machine
        if machine.virtual:
            raise Lacking("virtual GPUs check each access themselves")
        tool_file = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not os.access(tool_file, os.X_OK):
            raise Lacking("compute-sanitizer is not in PATH or /usr/local/cuda/bin; install the CUDA Toolkit")
        if not machine.launcher:
            raise Lacking("no mpiexec in PATH; use the program of a bundle, or set SHARDMARK_MPIEXEC")
        alone, parts = self.on_the_first(), []
        # Each rank has its own sanitizer, whose exit code becomes the launcher's. It checks the kernels of namespace
        # machine: racecheck reports races inside cuBLASLt's. Without limits and NCCL, which probes for kernels that it
        # lacks, no call of CUDA fails.
        for tool in ("memcheck", "racecheck", "synccheck"):
            check = [tool_file, "--tool", tool, "--kernel-name", "kernel_substring=machine", "--target-processes", "all",
                     "--error-exitcode", "86"]
            some = ["--device", "cuda", "--max-seconds", "0.01", "--timeout", "600", "--no-limits"]
            out = os.path.join(self.out, "runs", tool)
            parts.append(Part(f"{tool}_collectives", [
                machine.launcher, "-n", "2", *check, machine.binary, "run", "all_reduce", "all_gather", "reduce_scatter",
                "--transport", "cuda_ipc", "--ranks", "2", "--algorithm", "ring,direct", "--bytes", "8,100000",
                "--dtype", "float,bfloat16", *some, "--out", out + "_collectives"], environment=alone))
            # A program that the sanitizer ends says nothing about its later cases.
            for unit in ("layer_norm", "self_attention"):
                for dtype in ("float", "bfloat16"):
                    name = f"{tool}_{unit}_{dtype}"
                    parts.append(Part(name, [
                        machine.launcher, "-n", "1", *check, machine.binary, "run", unit, "--profile", "smoke",
                        "--filter=-transport:nccl", "--ranks", "1", "--dtype", dtype, *some,
                        "--out", os.path.join(self.out, "runs", name)], environment=alone))
        return parts

    def several_gpus(self):
        gpus = len(self.machine.gpus)
        if gpus < 2:
            raise Lacking("nccl and cuda_ipc between GPUs need 2 GPUs (got 1)")
        most = 1 << (min(gpus, self.sizes(gpus, 4)).bit_length() - 1)
        ranks = "2" if most == 2 else f"2,{most}"
        units = self.sizes(COLLECTIVES, ["all_reduce", "all_gather", "send_receive"])
        parts = []
        for transport in ("nccl", "cuda_ipc"):
            words = ["--transport", transport]
            parts.append(self.run(f"collectives_{transport}", *units, "barrier", *words, "--ranks", ranks,
                                  "--dtype", self.sizes("float,bfloat16", "float"), "--bytes", self.sizes("8,1MiB,64MiB", "8,1000"),
                                  "--max-seconds", self.sizes("0.2", "0.001")))
            if not self.machine.virtual:
                parts.append(self.run(f"armed_{transport}", "all_reduce", *words, "--ranks", str(most), "--dtype", "float",
                                      "--bytes", "8:64MiB:x16", "--timing", "armed", "--max-seconds", "0.2"))
            parts.append(self.run(f"gpt_step_{transport}", "gpt_step", "--profile", "smoke", *words))
            parts.append(self.run(f"pipeline_{transport}", "pipeline_step", "--profile", "smoke", *words))
        parts.append(self.graph(str(most)))
        parts.append(self.run("library", *units, "--transport", "nccl", "--algorithm", "library", "--ranks", ranks, "--dtype", "float",
                              "--bytes", self.sizes("8,1MiB,64MiB", "1000"), "--max-seconds", self.sizes("0.2", "0.001")))
        parts.append(self.hung(0, "--transport", "nccl", "--algorithm", "library", ranks=most))
        return parts

    def parts(self, name):
        return getattr(self, name)()
