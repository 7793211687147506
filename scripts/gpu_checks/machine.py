"""What scripts/check_gpu runs on: the program, its libraries and launcher, and the GPUs."""
import dataclasses
import glob
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys

SCRIPTS = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


class Unusable(Exception):
    """The check cannot start: a text and an exit code."""

    def __init__(self, text, code=3):
        super().__init__(text)
        self.code = code


@dataclasses.dataclass
class Machine:
    """What the checks run on."""
    program: str       # that is started
    binary: str        # the executable file behind it
    launcher: str      # mpiexec, or empty
    tests: str         # a build folder, or empty
    virtual: bool
    gpus: list         # {"name", "uuid", "memory"}
    driver: str
    versions: dict     # of `shardmark version`
    environment: dict


def ask(*words, environment=None):
    """Returns the output of a command, or an empty text."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=environment,
                              stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def first_of(*files):
    return next((file for file in files if file and os.access(file, os.X_OK)), "")


def build_program():
    """Builds the preset cuda, and returns the program."""
    found = subprocess.run([os.path.join(SCRIPTS, "find_cuda"), "--gpu"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise Unusable(f"the preset cuda cannot be built here ({found.stdout.strip()}); give a built program with --program")
    subprocess.run([os.path.join(SCRIPTS, "build"), "cuda"], check=True)
    return os.path.join(os.path.dirname(SCRIPTS), "build", "cuda", "shardmark")


def given_program(file):
    """Returns the program of the option, of the bundle around this script, or of a new build."""
    bundled = os.path.join(SCRIPTS, "..", "..", "..", "shardmark")
    program = file or first_of(bundled) or build_program()
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        raise Unusable(f"--program is {program}; expected a program (example: build/cuda/shardmark)", 2)
    return os.path.realpath(program)


def with_libraries(binary, environment, own):
    """Adds the folders of the libraries that the loader does not find: the program's, CUDA's and NCCL's."""
    missing = set(re.findall(r"^\s*(\S+) => not found", ask("ldd", binary, environment=environment), re.MULTILINE))
    if not missing:
        return
    folders = [os.path.join(own, "lib"), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64"), "/usr/local/cuda/lib64"]
    places = ask(sys.executable, "-c", "import site; print(*site.getsitepackages(), site.getusersitepackages(), sep='\\n')")
    for place in places.splitlines():
        folders += sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib")))
    used = []
    for folder in folders:
        here = {name for name in missing if os.path.exists(os.path.join(folder, name))}
        if here:
            used.append(folder)
            missing -= here
    if missing:
        raise Unusable(f"{binary} needs {', '.join(sorted(missing))}; install CUDA and NCCL, or set LD_LIBRARY_PATH")
    if used:
        environment["LD_LIBRARY_PATH"] = ":".join([*used, *filter(None, [environment.get("LD_LIBRARY_PATH")])])


def versions_of(program, environment):
    """Returns {"shardmark": …, "CUDA": …, "NCCL": …} of `shardmark version`."""
    said = ask(program, "version", environment=environment)
    if not said:
        raise Unusable(f"{program} version fails; run it for the reason")
    rows = {"shardmark": said.splitlines()[0].removeprefix("shardmark ")}
    for line in said.splitlines()[1:]:
        words = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        if len(words) == 2:
            rows[words[0]] = words[1]
    return rows


def gpus_of_program(program, environment, out):
    """Returns the GPUs by the record of a short run, for machines without nvidia-smi."""
    folder = os.path.join(out, "runs", "devices")
    shutil.rmtree(folder, ignore_errors=True)
    ask(program, "run", "memory_bandwidth", "--ranks", "1", "--device", "cuda", "--kernel", "copy", "--dtype", "float", "--bytes", "1KiB",
        "--max-seconds", "0.001", "--no-limits", "--out", folder, environment=environment)
    try:
        with open(os.path.join(folder, "environment.json"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return []
    count = re.search(r'"cuda_devices": *(\d+)', text)
    device = re.search(r'"device": *"(?:cuda:\d+: )?([^"]*)"', text)
    return [{"name": device[1] if device else "?"}] * int(count[1]) if count else []


def gpus_of_driver():
    """Returns the GPUs that nvidia-smi lists, and the version of the driver."""
    said = ask("nvidia-smi", "--query-gpu=name,uuid,memory.total,driver_version", "--format=csv,noheader")
    rows = [[word.strip() for word in line.split(",")] for line in said.splitlines() if line.count(",") == 3]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        chosen = [word for word in visible.split(",") if word]
        rows = [row for index, row in enumerate(rows) if str(index) in chosen or any(row[1].startswith(word) for word in chosen)] or rows
    return [{"name": row[0], "uuid": row[1], "memory": row[2]} for row in rows], rows[0][3] if rows else ""


def find_machine(options, out):
    program = given_program(options.program)
    folder = os.path.dirname(program)
    binary = first_of(os.path.join(folder, "bin", "shardmark")) or program
    environment = {**os.environ, "SHARDMARK_FIGURES": os.environ.get("SHARDMARK_FIGURES", os.devnull)}
    launcher = first_of(os.environ.get("SHARDMARK_MPIEXEC"), os.path.join(folder, "bin", "mpiexec"),
                        *map(shutil.which, ("mpiexec.mpich", "mpiexec.hydra", "mpiexec")))
    if launcher:
        environment.setdefault("SHARDMARK_MPIEXEC", launcher)
    with_libraries(binary, environment, folder)
    versions = versions_of(program, environment)
    cuda = versions.get("CUDA", "not built")
    if cuda == "not built":
        raise Unusable(f"{program} is built without CUDA; use one of the preset cuda")
    virtual = cuda.startswith("virtual")
    gpus, driver = ([], "") if virtual else gpus_of_driver()
    gpus = gpus or gpus_of_program(program, environment, out)
    if not gpus:
        raise Unusable("no GPU: nvidia-smi and the program find none")
    tests = options.tests or folder
    if not glob.glob(os.path.join(tests, "*", "*_test")):
        if options.tests:
            raise Unusable(f"--tests is {tests}; expected a build folder with unit tests (example: build/cuda)", 2)
        tests = ""
    try:
        for test in sorted(glob.glob(os.path.join(tests, "*", "*_test"))) if tests else []:
            with_libraries(test, environment, folder)
    except Unusable as lacking:
        print(f"check_gpu: {lacking}")
        tests = ""
    return Machine(program, binary, launcher, tests, virtual, gpus, driver, versions, environment)


def description_of(machine):
    """Returns the facts of the record that do not change between its steps."""
    with open(machine.binary, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    cpu = re.search(r"^model name\s*: (.*)$", ask("cat", "/proc/cpuinfo"), re.MULTILINE)
    return {"virtual": machine.virtual, "program": {"sha256": digest, **machine.versions}, "gpus": machine.gpus, "driver": machine.driver,
            "machine": {"cpu": cpu[1] if cpu else "", "cores": os.cpu_count(), "kernel": platform.release()}}
