#!/usr/bin/env python3
"""check_no_virtual_gpu on small programs: as they must be, and with one object or source too many or too few."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
COMPILER = os.environ.get("CXX", "g++")
SOURCES = ["machine/device/cuda/gemm.cpp", "machine/device/cuda/scale.cu", "machine/link/cuda_ipc.cpp"]


class NoVirtualGpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for path in SOURCES:
            self.write(path, "")
        self.compiles(SOURCES)
        for library, function in (("cudart", "cudaFree"), ("cublasLt", "cublasLtCreate"), ("nvidia-ml", "nvmlInit_v2")):
            self.write(f"{library}.cpp", f'extern "C" int {function}() {{ return 0; }}\n')
            self.compile("-shared", "-fPIC", self.path(f"{library}.cpp"), "-o", self.path(f"lib{library}.so"))
        self.write("program.cpp", 'extern "C" int cudaFree();\nextern "C" int cublasLtCreate();\n'
                                  "int main() { return cudaFree() + cublasLtCreate(); }\n")

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def compiles(self, sources):
        self.write("build/compile_commands.json", json.dumps([{"directory": self.folder.name, "file": name} for name in sources]))

    def compile(self, *words):
        subprocess.run([COMPILER, *words], check=True, timeout=120)

    def findings(self, *objects, libraries=("cudart", "cublasLt")):
        """Links a program with these texts as further sources, and returns what is found."""
        words = []
        for number, text in enumerate(objects):
            self.write(f"object{number}.cpp", text)
            words.append(self.path(f"object{number}.cpp"))
        self.compile(self.path("program.cpp"), *words, "-L" + self.folder.name, "-Wl,--no-as-needed",
                     *[f"-l{library}" for library in libraries], "-o", self.path("build", "program"))
        done = subprocess.run([os.path.join(HERE, "check_no_virtual_gpu"), "--root", self.folder.name, self.path("build"),
                               self.path("build", "program")], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1 if done.stdout else 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def test_a_program_of_nvcc_is_right(self):
        self.assertEqual(self.findings(), "")

    def test_one_object_of_the_virtual_gpu_is_found(self):
        text = self.findings("namespace machine::virtual_gpu { int random_number() { return 4; } }\n")
        self.assertRegex(text, r"program: holds \w*random_number\w* of the virtual GPU\n$")

    def test_functions_of_a_replaced_library_are_found(self):
        text = self.findings('extern "C" int cudaFree() { return 0; }\nextern "C" int ncclSend() { return 0; }\n')
        self.assertIn("defines cudaFree, which", text)
        self.assertIn("defines ncclSend, which", text)

    def test_libraries_that_lack_or_are_too_many_are_found(self):
        text = self.findings('extern "C" int cudaFree() { return 0; }\n', libraries=("cublasLt", "nvidia-ml"))
        self.assertIn("does not load libcudart.so", text)
        self.assertIn("is linked to libnvidia-ml", text)

    def test_other_sources_are_found(self):
        self.compiles([SOURCES[0], SOURCES[2], "machine/virtual_gpu/streams.cpp"])
        text = self.findings()
        self.assertIn("compiles machine/virtual_gpu/streams.cpp\n", text)
        self.assertIn("does not compile machine/device/cuda/scale.cu", text)


if __name__ == "__main__":
    if not shutil.which(COMPILER) or not shutil.which("readelf"):
        print("skipped: needs a compiler and binutils")
        sys.exit(77)
    unittest.main(verbosity=2)
