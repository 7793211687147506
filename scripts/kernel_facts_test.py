"""kernel_facts reads ptxas' report and finds each kernel that is worse than the table."""
import importlib.machinery
import importlib.util
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("kernel_facts", os.path.join(HERE, "kernel_facts"))
kernel_facts = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernel_facts", loader))
loader.exec_module(kernel_facts)

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN7machine4cuda6attendIfLi2EEEvi' for 'sm_90'
ptxas info    : Function properties for _ZN7machine4cuda6attendIfLi2EEEvi
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 8 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN7machine4cuda6attendIdLi4EEEvi' for 'sm_90'
ptxas info    : Function properties for _ZN7machine4cuda6attendIdLi4EEEvi
    0 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 8 bytes cmem[0]
"""


class KernelFacts(unittest.TestCase):
    def setUp(self):
        self.facts = kernel_facts.facts_of(REPORT)
        self.key = ("attend", 90)

    def errors(self, row, same_version=True):
        return list(kernel_facts.compare({self.key: row}, self.facts, same_version))

    def test_a_row_is_the_maximum_over_instances(self):
        self.assertEqual(self.facts, {self.key: [2, 64, 16, 8, 512]})

    def test_the_table_can_be_read_again(self):
        text = kernel_facts.table_text("13.0", self.facts, {"attend": 128})
        version, facts, derived = kernel_facts.read_table(text)
        self.assertEqual((version, facts), ("13.0", self.facts))
        self.assertEqual(derived[self.key][:2], [128, 0])
        self.assertIn("# Kernels that spill, in at least one instance: attend 16 bytes on sm_90.\n", text)

    def test_the_occupancy_of_two_kernels_by_hand(self):
        # Eight warps of 32 registers a lane: a warp has 1024 of a partition's 16384, so 16 fit into each
        # of the four partitions. All 64 warps of an SM are resident.
        self.assertEqual(kernel_facts.occupancy(90, 256, 32, 0), 100.0)
        # Four warps of 254 registers: 8128 round up to 8192, so two warps fit into a partition, 8 of 64
        # into the SM. Shared memory would allow three blocks: 167936 / (52224 + 1024) = 3.15.
        self.assertEqual(kernel_facts.occupancy(80, 128, 254, 52224), 12.5)
        # Shared memory decides: one block of four warps on sm_80 and sm_90.
        for architecture in (80, 90):
            self.assertEqual(kernel_facts.occupancy(architecture, 128, 32, 163 * 1024), 6.2)
        # A block of one thread takes a warp; 32 blocks are the most.
        self.assertEqual(kernel_facts.occupancy(100, 1, 10, 0), 50.0)

    def test_threads_come_from_the_sources(self):
        texts = ["constexpr int warp = 32, size = warp * 8;", "__global__ void __launch_bounds__(size)\n    add(int n) {}"]
        self.assertEqual(kernel_facts.threads_of_kernels(texts)["add"], 256)
        real = kernel_facts.threads_of_sources()
        self.assertEqual((real["each_kernel"], real["attend_mma"], real["hold"]), (256, 128, 1))

    def test_the_table_follows_from_its_rows(self):
        with open(kernel_facts.TABLE, encoding="utf-8") as file:
            text = file.read()
        _, facts, derived = kernel_facts.read_table(text)
        threads = kernel_facts.threads_of_sources()
        self.assertEqual(list(kernel_facts.compare_derived(facts, derived, threads)), [])
        self.assertIn("\n".join(kernel_facts.spills_text(facts)), text)
        derived[min(facts)][2] += 1
        [error] = kernel_facts.compare_derived(facts, derived, threads)
        self.assertIn("occupancy is", error)

    def test_worse_numbers_are_errors(self):
        self.assertEqual(self.errors([1, 64, 16, 8, 512]), [])
        for column, name in ((1, "registers"), (2, "spill"), (3, "stack"), (4, "shared")):
            row = [2, 64, 16, 8, 512]
            row[column] -= 1
            [error] = self.errors(row)
            self.assertIn(f"attend for sm_90: {name} is", error)
            self.assertEqual(len(self.errors(row, same_version=False)), name == "spill")

    def test_kernels_and_rows_without_counterpart_are_errors(self):
        [missing] = kernel_facts.compare({}, self.facts, True)
        self.assertIn("is not in the table", missing)
        [gone] = kernel_facts.compare({self.key: [2, 64, 16, 8, 512], ("old", 80): [1] * 5}, self.facts, True)
        self.assertIn("old for sm_80 is in the table, but is not compiled", gone)

    def test_names_have_no_template_arguments(self):
        for signature, name in (
                ("void machine::cuda::(anonymous namespace)::each<4, false, Body<float>>(long, Body<float>)", "each"),
                ("machine::cuda::hold(Words*, unsigned int)", "hold"),
                ("void machine::cuda::sum<float, (int)2>(float*)", "sum"),
                ("void machine::cuda::attend_mma<Half, 64, false>(Arguments<Half>)", "attend_mma"),
                ("void machine::cuda::attend_mma<Half, 64, true>(Arguments<Half>)", "attend_mma+dropout"),
                ("void machine::cuda::attend_plain<Half, (int)2, (bool)1>(Arguments<Half>)", "attend_plain+dropout"),
                ("void machine::cuda::other<Half, true>(Arguments<Half>)", "other")):
            self.assertEqual(kernel_facts.kernel_of(signature), name)


if __name__ == "__main__":
    unittest.main()
