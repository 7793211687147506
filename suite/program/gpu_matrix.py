"""What gpu_matrix_test runs: the units, their process grids, and the reasons for which a case may be left out."""

# Of the training steps, by ranks: TP, PP and DP.
GRIDS = {1: [(1, 1, 1)], 2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)], 4: [(2, 2, 1), (2, 1, 2)], 8: [(2, 2, 2)]}
ZERO_GRID = (2, 2, 2)  # of all ZeRO stages on 8 ranks
OURS = ["--tp-algorithm", "ours", "--dp-algorithm", "ours"]  # else the library is judged where it is the default
STEPS = ["gpt_grid", "gpt_step", "llama_step", "training_speed"]
RANKS = [1, 2, 4, 8]
TRANSPORTS = ["cuda_ipc", "nccl"]
SEEDS = range(1, 21)

# Units that do not run, with the reason.
WITHOUT = {"step_parts": "it judges times, which a virtual GPU does not have"}

# Shapes that 8 ranks divide, for units whose small shapes they do not.
SHAPES = {**{unit: ["--input_size", "24", "--output_size", "40"] for unit in ("column_parallel_linear", "row_parallel_linear")},
          **{unit: ["--num-attention-heads", "8"] for unit in ("fpdt_attention", "ulysses_attention")}}

# Refusals of a unit that has no case of some ranks, grid or transport.
REFUSALS = [
    r"the unit sends host memory; use shared_memory or mpi",
    r"does not divide|is not divided|not divisible|must divide|multiple of|divisible",  # of a small shape by many ranks
    r"ranks must be at least \d+|ranks \d+ or more",
    r"schedule .* requires|requires .*(stages|pipeline|micro-batches|layers)",
    r"^no case selected",
]

# Why a case, or an oracle of a case, is skipped, after the rank that says so.
SKIPS = [
    r"^the host's sleeps do not slow the streams of a GPU$",
    r"^the block is in host memory$",
    r"^io_uring is not available: ",
    r"^io_uring of this kernel is older than Linux 5\.11$",
    r"^cannot allocate memory of NUMA node \d+: ",
    r"^transport cuda_ipc requires ranks of one host; ",  # on two hosts
    r"O_DIRECT",  # a folder without direct reads and writes
    r"^one rank has no pair$",
    r"^the hosts' clocks differ$",
    r"^the library does not count the bytes that it sends$",
]


def grid_flags(grid, sequences):
    tp, pp, dp = grid
    flags = ["--ranks", str(tp * pp * dp), "--tensor-model-parallel-size", str(tp), "--pipeline-model-parallel-size", str(pp),
             "--data-parallel-size", str(dp)]
    return flags + ["--global-batch-size", str(sequences), "--micro-batch-size", "1"]
