#!/usr/bin/env python3
"""The program on virtual GPUs, as on a node with GPUs: it starts, uses them, and never accepts hardware."""

import json
import os
import re
import subprocess
import sys
import unittest

from process import LAUNCHER, NO_FIGURES, PROGRAM, TemporaryFolder, read_run, shardmark

# A host with two packages of two cores. hwloc reads it in place of this host, and binds no process.
GPU = """<object type="PCIDev" gp_index="{0}3" pci_busid="0000:0{0}:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1"
 pci_link_speed="31.5"/>"""
ADAPTER = """<object type="PCIDev" gp_index="94" pci_busid="0000:80:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00"
 pci_link_speed="31.5"><object type="OSDev" gp_index="95" name="mlx5_0" osdev_type="3"/></object>"""
BRIDGE = """<object type="Bridge" gp_index="{0}9" bridge_type="0-1" depth="0" bridge_pci="0000:[00-ff]">{1}</object>"""


def sets(cores, nodes):
    return f'cpuset="{cores:#x}" complete_cpuset="{cores:#x}" nodeset="{nodes:#x}" complete_nodeset="{nodes:#x}"'


def host_xml(devices):
    """Returns the host, with the devices of each package."""
    parts = []
    for package in (0, 1):
        cores = "".join(f'<object type="Core" os_index="{core}" {sets(1 << core, 1 << package)} gp_index="{core}01">'
                        f'<object type="PU" os_index="{core}" {sets(1 << core, 1 << package)} gp_index="{core}02"/></object>'
                        for core in (2 * package + 4, 2 * package + 5))
        all_cores, node = 0b11 << (2 * package + 4), 1 << package
        parts.append(f'<object type="Package" os_index="{package}" {sets(all_cores, node)} gp_index="{package + 4}">'
                     f'<object type="NUMANode" os_index="{package}" {sets(all_cores, node)} gp_index="{package + 6}" '
                     f'local_memory="1073741824"/>{cores}{devices[package]}</object>')
    return (f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">'
            f'<object type="Machine" os_index="0" {sets(0xf0, 3)} allowed_cpuset="0xf0" allowed_nodeset="0x3" gp_index="1">'
            f'{"".join(parts)}</object></topology>\n')


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

    def test_ranks_run_beside_their_gpus(self):
        devices = ["", BRIDGE.format(3, GPU.format(1) + GPU.format(2) + ADAPTER)]
        with open(self.path("host.xml"), "w", encoding="utf-8") as file:
            file.write(host_xml(devices))
        done = shardmark("run", "gemm", "--ranks", "2", "--dtype", "float", "--shape", "64x64x64", "--device", "cuda", *QUICK,
                         "--out", self.path("run"), timeout=300,
                         env={**NO_FIGURES, "SHARDMARK_VIRTUAL_GPUS": "2", "HWLOC_XMLFILE": self.path("host.xml")})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.path("run/environment.json"), encoding="utf-8") as file:
            environment = json.load(file)
        # Blocks of cores would bind rank 0 to the other package.
        self.assertEqual(environment["same_on_all_ranks"]["place"], {"numa_node": 1, "adapter": "mlx5_0"})
        self.assertEqual([rank["place"] for rank in environment["ranks"]],
                         [{"gpu": 0, "bus_id": "0000:01:00.0", "cores": "2"}, {"gpu": 1, "bus_id": "0000:02:00.0", "cores": "3"}])

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

    def test_records_have_the_times_of_both_clocks(self):
        self.run_units("all_reduce", "gemm", "--transport", "cuda_ipc", "--algorithm", "ring", "--ranks", "2", "--bytes", "8",
                       "--dtype", "float", "--shape", "64x64x64")
        cases = {case["unit"]: case for case in self.cases()}
        for case in cases.values():
            self.assertGreater(case["device_s"], 0, case["name"])
            self.assertGreater(case["host_s"], 0, case["name"])
            # Both units only queue work.
            self.assertAlmostEqual(case["real_time"] * 1e-9 / case["device_s"], 1, places=5, msg=case["name"])
        # A product waits for no rank. The host cannot see for which rank an all-reduce waits.
        if "delayed_s/rank:1" in cases["gemm"]:  # each rank has a core
            self.assertGreater(cases["gemm"]["busy_s/rank:1"], 0)
        self.assertNotIn("busy_s/rank:1", cases["all_reduce"])

    def test_kernels_are_loaded_before_a_gate_closes(self):
        for timing, loading in (("armed", "EAGER"), ("sample", None)):
            self.run_units("memory_bandwidth", "--ranks", "1", "--kernel", "copy", "--bytes", "1MiB", "--dtype", "float", "--timing",
                           timing)
            with open(self.path("run/environment.json"), encoding="utf-8") as file:
                environment = json.load(file)["same_on_all_ranks"]["environment"]
            self.assertEqual(environment.get("CUDA_MODULE_LOADING"), loading)

    def test_runs_that_wait_for_the_gpu_are_not_armed(self):
        self.run_units("compressed_all_reduce", "--transport", "cuda_ipc", "--ranks", "2", "--bytes", "4096", "--density", "0.01",
                       "--algorithm", "top_k,threshold,deviation", "--timing", "armed")
        verdicts = {case["case"]["algorithm"]: (case["verdict"], case.get("reason", "")) for case in self.cases()}
        self.assertEqual(verdicts["top_k"], ("pass", ""))
        for algorithm in ("threshold", "deviation"):  # the host reads how many elements were chosen
            self.assertEqual(verdicts[algorithm][0], "skipped")
            self.assertIn("only queues work", verdicts[algorithm][1])

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
                              gpus="2,fault=1:launch:3", code=4)
        self.assertRegex(text, r"rank 1[^\n]*gemm[^\n]* broke cuda:1: [^\n]*unspecified launch failure")
        run = read_run(self.path("run"))
        self.assertEqual(run["context"]["status"], "aborted")
        self.assertEqual(run["context"]["lost_rank"], 1)
        self.assertEqual(len(run["benchmarks"]), 1)

    def drained(self):
        with open(self.path("run/drain.json"), encoding="utf-8") as file:
            return [(entry["kind"], tuple(entry["ranks"])) for entry in json.load(file)["drain"]]

    def gpu_findings(self):
        kinds = ("lost GPU", "GPU memory", "slowed GPU", "narrow PCIe", "inactive NVLink")
        return {(kind, ranks) for kind, ranks in self.drained() if kind in kinds}

    def faulty(self, fault, code, *words):
        words = words or ("gemm", "--ranks", "2", "--dtype", "float", "--shape", "64x64x64")
        return self.run_units(*words, gpus=f"2,fault={fault}", code=code)

    def test_an_uncorrectable_memory_error_is_named_with_its_rank_and_case(self):
        text = self.faulty("1:ecc:3", 4)
        self.assertRegex(text, r"rank 1[^\n]*gemm[^\n]* broke cuda:1: [^\n]*the driver reports: 1 uncorrected memory \(ECC\) error since")
        self.assertIn("cudaErrorECCUncorrectable", text)
        self.assertIn(("lost rank", (1,)), self.drained())

    def test_a_lost_gpu_is_named_with_its_rank_and_case(self):
        text = self.faulty("1:lost:3", 4)
        self.assertRegex(text, r"rank 1[^\n]*gemm[^\n]* broke cuda:1: [^\n]*the driver reports: the GPU is lost")
        self.assertIn("cudaErrorDevicesUnavailable", text)
        self.assertIn(("lost rank", (1,)), self.drained())

    def test_a_gpu_that_computes_a_wrong_bit_is_found(self):
        self.faulty("1:product", 1)
        self.assertEqual({case["verdict"] for case in self.cases()}, {"fail"})
        self.assertIn(("wrong result", (1,)), self.drained())

    def test_an_allocation_that_fails_is_named_with_its_rank(self):
        self.faulty("1:memory", 1, "memory_bandwidth", "--ranks", "2", "--dtype", "float", "--bytes", "1MiB")
        self.assertEqual({case["verdict"] for case in self.cases()}, {"fail"})
        self.assertIn(("out of memory", (1,)), self.drained())

    def test_a_lost_link_is_named_with_a_rank(self):
        for transport in ("cuda_ipc", "nccl"):
            with self.subTest(transport=transport):
                text = self.faulty("0-1:link", 4, "all_reduce", "--transport", transport, "--ranks", "2", "--bytes", "100000",
                                   "--dtype", "float", "--algorithm", "ring")
                self.assertRegex(text, r"rank [01][^\n]*all_reduce")
                self.assertIn("uncorrectable NVLink error", text)
                self.assertIn("lost rank", dict(self.drained()))

    def test_what_the_driver_reports_is_found_and_nothing_else(self):
        self.faulty("0:launch:1000000", 0)
        self.assertFalse(self.gpu_findings())
        with open(self.path("run/environment.json"), encoding="utf-8") as file:
            environment = json.load(file)
        self.assertEqual(environment["same_on_all_ranks"]["hardware"]["gpu"]["pcie_lanes_max"], 16)
        self.assertEqual([rank["after"]["pcie_lanes"] for rank in environment["gpu_health"][0]], [16, 16])
        for fault, kind in (("remap", "GPU memory"), ("hot", "slowed GPU"), ("brake", "slowed GPU"), ("pcie", "narrow PCIe"),
                            ("nvlink", "inactive NVLink")):
            with self.subTest(fault=fault):
                text = self.faulty(f"1:{fault}:2", 0)
                self.assertIn(kind, text)
                self.assertEqual(self.gpu_findings(), {(kind, (1,))})

    def each_sees_one(self, *words, gpus="2"):
        """Runs two ranks, each of which sees one GPU, as with `srun --gpus-per-task=1`."""
        command = []
        for gpu in ("0", "1"):
            command += [":"] if command else LAUNCHER
            command += ["-n", "1", "env", f"CUDA_VISIBLE_DEVICES={gpu}", PROGRAM, "run", *words, "--device", "cuda", *QUICK,
                        "--out", self.path("run")]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, **NO_FIGURES, "SHARDMARK_VIRTUAL_GPUS": gpus})

    @unittest.skipIf(subprocess.run(["unshare", "--uts", "hostname", "h1"], capture_output=True, check=False).returncode,
                     "needs root, to give processes a host name")
    def test_two_hosts_with_two_gpus_each(self):
        words = ["run", "all_reduce", "--ranks", "4", "--bytes", "100000", "--dtype", "float", "--algorithm", "ring", "--device", "cuda",
                 "--transport", "cuda_ipc,nccl", *QUICK, "--out", self.path("run")]
        command = []
        for host in ("h1", "h2"):
            command += [":"] if command else LAUNCHER
            command += ["-n", "2", "unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$0" "$@"', PROGRAM, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, **NO_FIGURES, "SHARDMARK_VIRTUAL_GPUS": "2"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        cases = {case["case"]["transport"]: case for case in self.cases()}
        self.assertEqual(cases["nccl"]["verdict"], "pass")
        self.assertEqual(cases["cuda_ipc"]["verdict"], "skipped")
        self.assertRegex(cases["cuda_ipc"]["reason"], r"requires ranks of one host; rank \d is on h[12], rank \d on h[12]")
        self.assertEqual(read_run(self.path("run"))["context"]["gpus"], {"seen": 4, "tested": 4, "virtual": True})

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
        done = shardmark("run", "pipeline_bubble", "--transport", "nccl", "--device", "cuda", "--out", self.path("refused"))
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("unit sends host memory; use shared_memory or mpi", done.stderr)
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

    def test_collectives_of_nccl_in_place(self):
        for operation in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"):
            done = shardmark("collective", operation, "--ranks", "3", "--device", "cuda", "--algorithm", "library",
                             "-b", "24", "-e", "24K", "-f", "32", "-n", "2", "-w", "1")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("# Out of bounds values : 0 OK", done.stdout)
            rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#") and line]
            self.assertTrue(rows)
            for row in rows:
                self.assertEqual(row[-1], "0", row)  # wrong values in place; N/A if not measured

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
    # A preset that sets the variable has virtual GPUs, and must say so.
    if "SHARDMARK_VIRTUAL_GPUS" not in os.environ and not re.search(r"^ *CUDA +virtual", shardmark("version").stdout, re.M):
        print("skipped: the program has no virtual GPUs")
        sys.exit(77)
    unittest.main(verbosity=2)
