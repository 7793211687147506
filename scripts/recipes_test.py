"""The recipes of packages: their dependencies are those that CMake looks for, their version is the program's."""
import importlib.util
import os
import re
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
# Names of CMake's dependencies in each recipe. An empty name is part of another dependency.
NAMES = {
    # CMake           apt (scripts/install)   Spack            conda
    "PkgConfig":     ("pkg-config",          "pkgconfig",     "pkg-config"),
    "MPI":           ("libmpich-dev",        "mpich",         "mpich"),
    "hwloc":         ("libhwloc-dev",        "hwloc",         "libhwloc"),
    "DNNL":          ("libdnnl-dev",         "onednn",        "onednn"),
    "liburing":      ("liburing-dev",        "liburing",      "liburing"),
    "benchmark":     ("libbenchmark-dev",    "benchmark",     "benchmark"),
    "GTest":         ("libgtest-dev",        "googletest",    "gtest"),
    "nlohmann_json": ("nlohmann-json3-dev",  "nlohmann-json", "nlohmann_json"),
    "tomlplusplus":  ("libtomlplusplus-dev", "tomlplusplus",  "tomlplusplus"),
    "fmt":           ("libfmt-dev",          "fmt",           "fmt"),
    "SQLite3":       ("libsqlite3-dev",      "sqlite",        "libsqlite"),
}
OF_THE_COMPILER = {"Threads", "OpenMP"}
OF_CUDA = {"CUDAToolkit", "NCCL"}
TOOLS = {"cmake", "ninja", "c", "cxx", "python", "openmpi", "cuda", "nccl", "py-matplotlib", "py-pandas", "matplotlib-base", "pandas"}


def text_of(*path):
    with open(os.path.join(HERE, *path), encoding="utf-8") as file:
        return file.read()


def found_by_cmake():
    text = "".join(text_of("cmake", name) for name in ("dependencies.cmake", "mpi.cmake"))
    text = re.sub(r"#.*", "", text)
    found = set(re.findall(r"find_package\((\w+)", text)) | set(re.findall(r"find_library\((\w+)_LIBRARY", text))
    return found | set(re.findall(r"pkg_check_modules\((\w+)", text))


def run_spack_recipe():
    """(directive, first argument) of the recipe, run with stubs of Spack."""
    called = []

    def directive(name):
        return lambda *words, **_: called.append((name, words[0]))
    names = {name: directive(name) for name in ("license", "version", "variant", "depends_on", "conflicts", "generator")}
    names |= {"CMakePackage": type("CMakePackage", (), {}), "CudaPackage": type("CudaPackage", (), {})}
    text = re.sub(r"^from spack.*\n", "", text_of("packages", "spack", "package.py"), flags=re.MULTILINE)
    exec(compile(text, "package.py", "exec"), names)
    return called


class Recipes(unittest.TestCase):
    version = text_of("python", "shardmark", "VERSION").strip()

    def names(self, column):
        found = found_by_cmake() - OF_THE_COMPILER - OF_CUDA
        self.assertEqual(found, set(NAMES))
        return {NAMES[name][column] for name in found}

    def test_debian_packages(self):
        packages = re.findall(r"^run +\| ([\w.+-]+)", text_of("install"), re.MULTILINE)
        self.assertLessEqual(self.names(0), set(packages))

    def test_spack(self):
        called = run_spack_recipe()
        depends = {spec.split("@")[0]: spec for name, spec in called if name == "depends_on"}
        self.assertEqual(depends.keys() - TOOLS, self.names(1))
        self.assertEqual([version for name, version in called if name == "version"], [self.version])
        self.assertEqual(depends["cuda"], "cuda@13:")
        self.assertIn("find_package(CUDAToolkit 13 ", text_of("cmake", "dependencies.cmake"))

    @unittest.skipIf(importlib.util.find_spec("yaml") is None, "Python lacks yaml")
    def test_conda(self):
        import yaml
        recipe = yaml.safe_load(text_of("packages", "conda", "recipe.yaml"))
        self.assertLessEqual({"package", "source", "build", "requirements", "tests", "about"}, recipe.keys())
        self.assertEqual((recipe["package"]["name"], recipe["context"]["version"]), ("shardmark", self.version))
        words = {word.split()[0] for part in recipe["requirements"].values() for word in part if not word.startswith("$")}
        self.assertEqual(words - TOOLS, self.names(2))

    def test_container(self):
        instructions = re.findall(r"^([A-Z]+) (.*)$", text_of("packages", "Containerfile"), re.MULTILINE)
        self.assertEqual({word for word, _ in instructions},
                         {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"})
        for script in re.findall(r"\bscripts/(\w+) ", text_of("packages", "Containerfile")):
            self.assertTrue(os.access(os.path.join(HERE, script), os.X_OK), script)

    def test_the_changelog_has_a_section_for_this_version(self):
        self.assertRegex(text_of("..", "CHANGELOG.md"), rf"(?m)^## {re.escape(self.version)}\b")


if __name__ == "__main__":
    unittest.main()
