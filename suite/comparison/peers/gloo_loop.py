"""The timing loop of PyTorch's gloo (timing_loop.h): the same arguments and output. scripts/compare_mpi starts it.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are those of torch.distributed.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

FILLED_S, WARM_UPS, FEWEST, MOST = 22e-6, 10, 30, 10000


def call_of(operation, given, out, rank, ranks):
    share = given.numel() // ranks
    parts = list(given[:share * ranks].view(ranks, share))
    outs = list(out[:share * ranks].view(ranks, share))
    return {
        "all_reduce": lambda: dist.all_reduce(out),
        "all_gather": lambda: dist.all_gather_into_tensor(out[:share * ranks], parts[0]),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(outs[0], given[:share * ranks]),
        "broadcast": lambda: dist.broadcast(out, 0),
        "reduce": lambda: dist.reduce(out, 0),
        "all_to_all": lambda: dist.all_to_all_single(out[:share * ranks], given[:share * ranks]),
        "gather": lambda: dist.gather(parts[0], outs if rank == 0 else None, 0),
        "scatter": lambda: dist.scatter(outs[0], parts if rank == 0 else None, 0),
    }.get(operation)


def timed(call, batch):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(batch):
        call()
    return (time.perf_counter() - begin) / batch


def maximum(values):
    """The maximum over ranks of each value."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def times_of(call, filled, seconds):
    for _ in range(WARM_UPS):
        warm_s = timed(call, 1)
    batch = 1
    if filled:
        warm_s = maximum([timed(call, 20)])[0]
        batch = max(1, int(FILLED_S / warm_s))
    sample_s = maximum([warm_s * batch])[0]
    count = int(min(max(seconds / max(sample_s, 1e-9), FEWEST), MOST))
    times = sorted(maximum([timed(call, batch) for _ in range(count)]))
    return times[count // 2], times[count // 20]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    how, seconds, *operations = sys.argv[1:]
    for word in operations:
        operation, sizes = word.split("=")
        for size in sizes.split(","):
            given, out = torch.zeros(int(size) // 4), torch.zeros(int(size) // 4)
            call = call_of(operation, given, out, rank, ranks)
            if call is None:
                continue
            try:
                median, p5 = times_of(call, how == "filled", float(seconds))
            except (RuntimeError, NotImplementedError):  # a call that this version of gloo does not have
                break
            if rank == 0:
                print(operation, size, f"{median:.9g} {p5:.9g}", flush=True)
    dist.destroy_process_group()


main()
