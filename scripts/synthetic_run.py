"""A synthetic run.json with the data of every kind of figure.

    scripts/synthetic_run.py RUN_DIR    (to look at the figures without a run)
"""
import json
import os
import random
import sys


def entry(unit, case, real_s, chance, repetition=0, **more):
    name = unit + "".join(f"/{axis}:{value}" for axis, value in case.items())
    width = real_s * chance.uniform(0.01, 0.05)
    return {"name": name, "run_name": name, "run_type": "iteration", "repetitions": 1,
            "repetition_index": repetition, "threads": 1, "iterations": 50, "real_time": real_s * 1e9,
            "cpu_time": real_s * 0.9e9, "time_unit": "ns", "unit": unit,
            "case": {k: str(v) for k, v in case.items()}, "verdict": "pass", "reason": "", "oracles": {},
            "ci_low_s": real_s - width, "ci_high_s": real_s + width, "samples": 50, "stop": "converged", **more}


def collectives(chance):
    for unit, factor in (("all_reduce", 1.5), ("all_gather", 0.75)):
        for size in [8 * 4**i for i in range(12)]:
            limit = 2e-7 + size / 9e9
            library = 9e-6 + size / 2.4e9
            for algorithm, transport, latency, rate in (
                    ("ring", "shared_memory", 6e-6, 5.5e9), ("direct", "shared_memory", 2e-6, 4.6e9),
                    ("recursive_halving_doubling", "shared_memory", 3e-6, 5e9), ("ring", "mpi", 30e-6, 2e9),
                    ("library", "mpi", 9e-6, 2.4e9)):
                time = (latency + size / rate) * chance.uniform(0.95, 1.05)
                case = {"algorithm": algorithm, "transport": transport, "dtype": "float", "ranks": 4, "bytes": size}
                item = entry(unit, case, time, chance, bytes=size, algbw_GBps=size / time * 1e-9,
                             busbw_GBps=factor * size / time * 1e-9, limit_s=limit, limit_fraction=limit / time)
                if algorithm != "library":
                    item.update(library_s=library, speedup_over_library=library / time)
                if (unit, algorithm, size) == ("all_reduce", "direct", 8 * 4**6):
                    item.update(verdict="fail", reason="numerics: rank 2: error 0.3, bound 1e-6")
                yield item
    skipped = entry("all_reduce", {"algorithm": "ring", "transport": "nccl", "dtype": "float", "ranks": 4, "bytes": 8},
                    1, chance, verdict="skipped", reason="needs 4 GPUs, found 0")
    yield {**skipped, "real_time": 0, "cpu_time": 0}


def pipeline(chance):
    """Simulated GPipe and 1F1B, 4 stages and 8 micro-batches."""
    for schedule in ("gpipe", "1f1b"):
        stages, micro, spans, ends = 4, 8, [], {}
        orders = []
        for stage in range(stages):
            warm = micro if schedule == "gpipe" else min(stages - stage, micro)
            order = [("F", i) for i in range(warm)]
            for i in range(micro):
                order.append(("B", i))
                if warm + i < micro:
                    order.append(("F", warm + i))
            orders.append(order)
        at = [0.0] * stages
        while any(orders):
            for stage, order in enumerate(orders):
                if not order:
                    continue
                kind, i = order[0]
                before = (kind, i, stage - 1 if kind == "F" else stage + 1)
                needed = 0.0 if before[2] in (-1, stages) else ends.get(before)
                if kind == "B" and stage == stages - 1:
                    needed = ends.get(("F", i, stage))
                if needed is None:
                    continue
                begin = max(at[stage], needed)
                end = begin + (0.8e-3 if kind == "F" else 1.7e-3) * chance.uniform(0.95, 1.05)
                ends[(kind, i, stage)] = at[stage] = end
                spans.append({"rank": stage, "lane": "compute", "name": f"{kind}{i}", "start_s": begin, "end_s": end})
                order.pop(0)
        time = max(at)
        yield entry("pipeline_step", {"schedule": schedule, "pp": stages, "micro_batches": micro, "ranks": stages},
                    time, chance, timeline=spans, steps_per_second=1 / time,
                    breakdown_s=[{"name": "forward", "seconds": micro * 0.8e-3},
                                 {"name": "backward", "seconds": micro * 1.7e-3},
                                 {"name": "waiting", "seconds": time - micro * 2.5e-3}])


def zero_bubble(chance):
    """ZB-V on two stages; two chunks each, backward in halves."""
    orders = ("F0 F1 F2 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0 W0 F2.1 I2.1 W2.1 I1 W1 I2 W2",
              "F0 F0.1 F1 F1.1 I0.1 W0.1 F2 I0 W0 F2.1 I1.1 W1.1 I1 I2.1 I2 W1 W2.1 W2")
    spans = [{"rank": stage, "lane": "compute", "name": name, "start_s": (stage + i) * 1e-3,
              "end_s": (stage + i + 1) * 1e-3} for stage, order in enumerate(orders) for i, name in enumerate(order.split())]
    yield entry("pipeline_step", {"schedule": "zb_v", "pp": 2, "micro_batches": 3, "ranks": 2}, 19e-3, chance,
                timeline=spans)


def bubbles(chance):
    for schedule, virtual, idle in (("1f1b", 1, 9), ("interleaved_1f1b", 2, 4.5), ("zb_h1", 1, 3), ("zb_v", 2, 0)):
        for micro in (8, 16, 32):
            expected = idle / (3 * micro + idle)
            yield entry("pipeline_bubble", {"schedule": schedule, "virtual_stages": virtual, "micro_batches": micro,
                                            "ranks": 4}, 1e-3 * (3 * micro + idle), chance,
                        bubble_expected=expected, bubble_measured=expected * chance.uniform(1, 1.08) + 0.004)


def training(chance):
    losses = {}
    grids = [("1-1-1-1-1", 1, 0), ("2-1-1-1-1", 2, 0), ("1-1-1-2-1", 2, 1), ("1-1-1-2-1", 2, 3), ("2-1-1-2-1", 4, 2),
             ("1-1-1-2-2", 4, 1), ("2-1-1-1-2", 4, 0)]
    for dtype in ("float", "bfloat16"):
        losses[dtype] = [5.5 * 0.97**i + chance.uniform(0, 0.03) for i in range(20)]
        for grid, ranks, stage in grids:
            time = 0.11 / ranks**0.8 * (0.8 if dtype == "bfloat16" else 1)
            parts = {"forward": 0.27, "backward": 0.48, "all_reduce": 0.04 * ranks, "optimizer": 0.06}
            size = 3.3e6 / ranks
            categories = {"parameters": 4 * size, "gradients": 4 * size, "optimizer": 8 * size,
                          "activations": 6e6 / ranks, "buffers": 1.5e6}
            wrong = 65536 if (grid, dtype) == ("2-1-1-1-2", "float") else 0
            yield entry("gpt_step", {"grid": grid, "zero_stage": stage, "dtype": dtype, "ranks": ranks}, time, chance,
                        tokens_per_second=1024 / time, flops=1e9, mfu=0.3, mfu_of_gemm=0.4, peak_TFLOPs=312, losses=losses[dtype],
                        breakdown_s=[{"name": k, "seconds": v * time} for k, v in parts.items()],
                        memory=[{"category": k, "measured": round(v) + (wrong if k == "buffers" else 0),
                                 "expected": round(v)} for k, v in categories.items()])


def broken_down(chance):
    """Two stages of two ranks, with a thread that reduces concurrently."""
    parts = ["data", "forward", "backward input", "backward weights", "communication tp", "communication pp",
             "communication dp", "bubble", "optimizer", "other"]
    ranks = range(4)
    yield entry("gpt_step", {"grid": "2-1-1-1-2", "zero_stage": 1, "dtype": "float", "ranks": 4, "schedule": "1f1b"}, 0.1, chance,
                communication_fraction=0.3, bubble_fraction=0.1,
                step_breakdown={"parts": parts, "hidden_parts": ["communication dp"],
                                "seconds": [[1e-4, 0.02, 0.02, 0.02, 0.01, 1e-3, 0.002, 0.01 + 1e-3 * rank, 0.01, 1e-4]
                                            for rank in ranks],
                                "hidden_s": [[0.012] for _ in ranks],
                                "waited_s": [[0 if a == b else 1e-3 * (1 + a + 2 * b) for b in ranks] for a in ranks]})


def training_scales(chance):
    """Strong: 8 sequences on more ranks; weak: 8 for each."""
    for ranks in (1, 2, 4):
        for batch in sorted({8, 8 * ranks}):
            time = batch / ranks + 0.1 * ranks
            yield entry("training_speed", {"dtype": "float", "ranks": ranks, "tensor-model-parallel-size": ranks,
                                           "global-batch-size": batch}, time, chance, tokens_per_second=1024 * batch / time)


def machine(chance):
    for dtype, rate in (("float", 95e9), ("bfloat16", 140e9)):
        for ranks in (1, 2):
            for size in (256, 1024):
                flops = 2.0 * size**3
                time = flops / rate / (0.93 if size == 1024 else 0.7)
                yield entry("gemm", {"dtype": dtype, "m": size, "ranks": ranks}, time, chance, flops=flops)
    for size in (2**14, 2**17, 2**20, 2**23, 2**26):
        time = size / (4e10 if size < 2**21 else 1.1e10)
        yield entry("copy", {"bytes": size, "ranks": 1}, time, chance, bytes=size, algbw_GBps=size / time * 1e-9,
                    limit_fraction=0.97)


def links(chance):
    """Two hosts of three ranks; the link from 1 to 4 is slow."""
    for ranks, mode in ((2, "together"), (6, "together"), (6, "alone")):
        hosts = [f"node-{rank // 3:03}.cluster.example" for rank in range(ranks)]
        near = [[hosts[a] == hosts[b] for b in range(ranks)] for a in range(ranks)]
        rate = [[0 if a == b else (12 if near[a][b] else 6) * chance.uniform(0.97, 1.03) for b in range(ranks)]
                for a in range(ranks)]
        latency = [[0 if a == b else (0.6 if near[a][b] else 2.5) * chance.uniform(0.97, 1.03) for b in range(ranks)]
                   for a in range(ranks)]
        slow = []
        if ranks == 6:
            rate[1][4] = 1.9
            slow = [{"from": 1, "to": 4, "metric": "bandwidth", "value": 1.9, "typical": 6.0, "z": 21.6}]
        yield entry("link_matrix", {"transport": "shared_memory", "mode": mode, "ranks": ranks, "bytes": 2**20}, 2e-3,
                    chance, pair_GBps=6.1, slow_pairs=len(slow),
                    link_matrix={"hosts": hosts, "bandwidth_GBps": rate, "latency_us": latency, "crowded_hosts": [],
                                 "slow_pairs": slow})


def memory_maps(chance):
    """Gradients between freed checkpoints leave holes that are too short; then separate arenas."""
    def block(category, address, size, begin, end):
        return {"category": category, "address": address, "bytes": size, "begin": begin, "end": end}
    yield entry("memory_arena", {"fit": "first", "ranks": 1, "layers": 2}, 1e-3, chance, memory_maps=[
        {"name": "without arenas", "bytes": 6144, "events": 7, "failed": {"asked": 1536, "free": 2048, "longest": 1024},
         "blocks": [block("parameters", 0, 2048, 0, 7), block("activations", 2048, 1536, 1, 3),
                    block("gradients", 2048, 1024, 4, 7), block("buffers", 4096, 1024, 2, 7)]},
        {"name": "with arenas", "bytes": 6144, "events": 5,
         "blocks": [block("parameters", 0, 2048, 0, 5), block("gradients", 2048, 1024, 1, 5),
                    block("activations", 3072, 1536, 2, 5), block("buffers", 4608, 1536, 3, 4)]}])


def document():
    chance = random.Random(7)
    rates = {f"gemm_GFLOPs/ranks:{r}/dtype:{d}": v for r in (1, 2) for d, v in (("float", 96.0), ("bfloat16", 141.0))}
    for ranks in (1, 2, 4):
        for size in (2**14, 2**17, 2**20, 2**23, 2**26):
            rates[f"copy_GBps/ranks:{ranks}/bytes:{size}"] = (41.0 if size < 2**21 else 11.4) / ranks**0.6
    context = {"date": "2025-01-02T03:04:05+00:00", "host_name": "node", "executable": "shardmark", "num_cpus": 4,
               "mhz_per_cpu": 2000, "caches": [], "load_avg": [], "library_build_type": "release",
               "schema": "shardmark-run/2", "shardmark_version": "0.1.0", "profile": "quick",
               "command": "shardmark run", "status": "complete", "status_reason": "", "rates": rates}
    makers = (collectives, pipeline, zero_bubble, bubbles, training, machine, links, memory_maps, broken_down,
              training_scales)
    return {"context": context, "benchmarks": [item for maker in makers for item in maker(chance)]}


def write(directory, run):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "run.json"), "w", encoding="utf-8") as file:
        json.dump(run, file)


if __name__ == "__main__":
    write(sys.argv[1], document())
