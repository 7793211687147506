# Copyright Shardmark contributors.
# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Shardmark(CMakePackage, CudaPackage):
    """Benchmark and conformance suite for the software stack that trains large language models on
    many GPUs: collectives, tensor-parallel layers, ZeRO, pipeline schedules and the training step.
    """

    license("Apache-2.0", checked_by="shardmark")

    # The recipe builds a checkout: spack dev-build -d CHECKOUT shardmark@VERSION
    version("0.1.0")

    variant("openmpi", default=False, description="Build against Open MPI instead of MPICH")
    variant("figures", default=True, description="Draw the figures of a report")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpich", when="~openmpi")
    depends_on("openmpi", when="+openmpi")
    depends_on("hwloc")
    depends_on("onednn")
    depends_on("liburing@2.2:")
    depends_on("benchmark")
    depends_on("googletest", type=("build", "link"))
    depends_on("nlohmann-json", type="build")
    depends_on("tomlplusplus", type="build")
    depends_on("fmt")
    depends_on("sqlite")
    depends_on("cuda@13:", when="+cuda")
    depends_on("nccl", when="+cuda")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-matplotlib", type="run", when="+figures")
    depends_on("py-pandas", type="run", when="+figures")

    conflicts("%gcc@:11", msg="shardmark requires GCC 12 or newer")

    generator("ninja")

    def cmake_args(self):
        arguments = [
            self.define_from_variant("SHARDMARK_CUDA", "cuda"),
            self.define("SHARDMARK_MPI", "openmpi" if "+openmpi" in self.spec else "mpich"),
            self.define("SHARDMARK_MARCH", ""),
            self.define("BUILD_TESTING", self.run_tests),
        ]
        if "+cuda" in self.spec:
            architectures = self.spec.variants["cuda_arch"].value
            if architectures[0] != "none":
                arguments.append(self.define("CMAKE_CUDA_ARCHITECTURES", list(architectures)))
        return arguments
