"""coverage_gpu chooses the lines of the GPU path, adds the counts of all objects, and names the lines that did not run."""
import importlib.machinery
import importlib.util
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("coverage_gpu", os.path.join(HERE, "coverage_gpu"))
coverage = importlib.util.module_from_spec(importlib.util.spec_from_loader("coverage_gpu", loader))
loader.exec_module(coverage)

TEXT = """\
void f() {
  if (!tensor.device().readable_by_host()) return copy(
      tensor);
  if (tensor.device().readable_by_host()) return;
  if (staging_) {
    down();
  }
  up();
}
"""


def report(path, **counts):
    return {"current_working_directory": "/clone/build",
            "files": [{"file": path, "lines": [{"line_number": int(line[1:]), "count": count} for line, count in counts.items()]}]}


class Coverage(unittest.TestCase):
    def test_branches_of_a_gpu(self):
        self.assertEqual(coverage.branch_lines(TEXT), {2, 3, 5, 6, 7})

    def test_counts_are_added_over_objects(self):
        counts = coverage.merged([report("../zero/a.cpp", l2=0, l8=1), report("../zero/a.cpp", l2=3)], "/clone")
        self.assertEqual(dict(counts), {"zero/a.cpp": {2: 3, 8: 1}})

    def test_only_the_path_counts(self):
        counts = coverage.merged([report("../zero/a.cpp", l3=0, l6=2, l8=0), report("../machine/link/nccl.cpp", l1=1, l2=0),
                                  report("../machine/link/nccl_test.cpp", l1=0), report("../machine/virtual_gpu/ipc.cpp", l1=0),
                                  report("/usr/include/c++/12/vector", l1=0)], "/clone")
        chosen = coverage.of_the_path(counts, lambda path: TEXT)
        self.assertEqual(chosen, {"machine/link/nccl.cpp": {1: 1, 2: 0}, "zero/a.cpp": {3: 0, 6: 2}})
        text, share = coverage.table(chosen)
        self.assertEqual(share, 50)
        self.assertIn("zero/a.cpp: not run: 3\n", text)

    def test_ranges(self):
        self.assertEqual(coverage.ranges([7, 3, 5, 6]), "3, 5-7")

    def test_the_conditions_occur_in_the_tree(self):
        with open(os.path.join(HERE, "..", "zero", "checkpoint", "checkpoint.cpp"), encoding="utf-8") as file:
            self.assertEqual(coverage.branch_lines(file.read()), set())  # it returns for the host, and goes on for a GPU
        with open(os.path.join(HERE, "..", "pipeline", "execute.cpp"), encoding="utf-8") as file:
            self.assertGreater(len(coverage.branch_lines(file.read())), 5)


if __name__ == "__main__":
    unittest.main()
