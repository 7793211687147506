#!/usr/bin/env python3
"""scripts/test succeeds if every step does, and otherwise names what failed."""

import os
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CTEST = """#!/bin/sh
while [ "$1" != --output-junit ]; do [ "$1" = --preset ] && preset=$2; shift; done
[ "$preset" = "$NO_TESTS" ] && exit 8
[ "$preset" = "$FAILS" ] && failures=1 || failures=0
{
  echo "<testsuite>"
  if [ $failures = 0 ]; then
    echo '<testcase name="Gemm.Adds" time="1.5" status="run"/>'
  else
    echo '<testcase name="Gemm.Adds" time="1.5" status="fail"><failure/><system-out>3 is not 4</system-out></testcase>'
  fi
  echo '<testcase name="Ring" status="run"><system-out>[  PASSED  ] 2 tests.
[  SKIPPED ] 1 test.</system-out></testcase>'
  echo '<testcase name="Ring.Slow" status="disabled"/>'
  echo '</testsuite>'
} >"$2"
exit $failures
"""


class Test(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("scripts", "build", "bin"):
            os.mkdir(self.path(name))
        shutil.copy(os.path.join(HERE, "test"), self.path("scripts"))
        shutil.copy(os.path.join(os.path.dirname(HERE), "CMakePresets.json"), self.root)
        for name in ("install", "docs"):
            self.script(f"scripts/{name}", f'#!/bin/sh\n[ "$FAILS" != {name} ]\n')
        self.script("scripts/lint", "#!/bin/sh\necho lint: ruff: clean\n[ \"$FAILS\" != lint ] || { echo a.cpp: finding; exit 1; }\n")
        self.script("scripts/find_cuda", "#!/bin/sh\necho no nvcc\nexit 1\n")
        self.script("scripts/build", '#!/bin/sh\n[ "$1" != "$BREAKS" ]\n')
        self.script("bin/ctest", CTEST)

    def path(self, name):
        return os.path.join(self.root, name)

    def script(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), 0o755)

    def ran(self, *words, **environment):
        """Returns the exit code and the lines."""
        environment = {**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"], **environment}
        done = subprocess.run([self.path("scripts/test"), *words], capture_output=True, text=True, check=False, env=environment)
        return done.returncode, done.stdout.splitlines()

    def test_succeeds_if_every_step_does(self):
        code, lines = self.ran()
        self.assertEqual((code, lines[-1]), (0, "tests: 9 passed, 0 failed, 6 skipped"))  # release, asan and tsan
        self.assertEqual(self.ran("--only", "lint")[0], 0)
        self.assertEqual(self.ran("--only", "docs")[0], 0)

    def test_a_step_that_fails_makes_it_fail(self):
        for step, words in (("lint", "lint: not clean"), ("docs", "docs: not built")):
            code, lines = self.ran(FAILS=step)
            self.assertEqual(code, 1, step)
            self.assertIn(words, "\n".join(lines))
            self.assertEqual(lines[-1], "tests: 9 passed, 0 failed, 6 skipped")

    def test_failed_tests_are_named_at_the_end(self):
        code, lines = self.ran(FAILS="asan")
        self.assertEqual((code, lines[-1]), (1, "tests: 8 passed, 1 failed, 6 skipped"))
        at = lines.index("test: asan: FAILED: Gemm.Adds after 1.5 s")
        self.assertEqual(lines[at + 1], "3 is not 4")

    def test_findings_of_lint_are_repeated_at_the_end(self):
        _, lines = self.ran(FAILS="lint")
        summary, = (at for at, line in enumerate(lines) if line.startswith("test: lint: not clean; "))
        self.assertEqual(lines[summary - 1], "a.cpp: finding")
        self.assertEqual(lines.count("lint: ruff: clean"), 1)

    def test_a_preset_that_does_not_build_or_runs_no_test_makes_it_fail(self):
        for environment, words in (({"BREAKS": "tsan"}, "test: tsan: does not build"), ({"NO_TESTS": "tsan"}, "test: tsan: no test ran")):
            code, lines = self.ran(**environment)
            self.assertEqual((code, lines[-1]), (1, "tests: 6 passed, 0 failed, 4 skipped"))
            self.assertIn(words, lines)


if __name__ == "__main__":
    unittest.main()
