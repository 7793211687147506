"""Copies the launcher and all libraries into a bundle, so that its programs load no other libraries."""
import os
import re
import shutil
import subprocess

# glibc must match the kernel and the loader of the machine, and the driver library must match its GPU. The libraries
# of RDMA networks must match the machine's drivers and their own plugins. NCCL opens them by name: it would find those of
# the bundle first, and use sockets without an error if they do not match. CUDA's and NCCL's libraries are larger than
# everything else; scripts/check_gpu finds those of the machine.
OF_THE_MACHINE = re.compile(r"^(ld-linux.*|linux-vdso.*|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl"
                            r"|libnss_.*|libcuda|libnvidia.*|libcudart|libcublas.*|libnccl"
                            r"|libibverbs|librdmacm|libibumad|libmlx[45]|libefa|libmana|lib\w+-rdmav\d+|libnl(?:-route)?-3)\.so")


class Missing(Exception):
    """A library or program that a bundle needs."""


def loaded_by(files):
    """Returns {soname: file} that the loader finds for the files, except those of the machine."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    missing = sorted({line.strip() for line in said.splitlines()
                      if "not found" in line and not OF_THE_MACHINE.match(line.strip())})
    if missing:
        raise Missing("; ".join(missing))
    found = dict(re.findall(r"^\s*(\S+) => (/\S+) ", said, re.MULTILINE))
    return {soname: path for soname, path in found.items() if not OF_THE_MACHINE.match(soname)}


def can_be_loaded(file):
    return "not found" not in subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout


def files_in(folder):
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not os.path.islink(os.path.join(folder, name))]


def copy(sources, source, tree, target):
    """Copies a file into the tree and remembers its source."""
    place = os.path.join(tree, target)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    shutil.copyfile(source, place)
    os.chmod(place, 0o755 if os.access(source, os.X_OK) and target.startswith("bin/") else 0o644)
    sources[target] = os.path.realpath(source)


def fill(tree, launcher):
    """Adds launcher, libraries and UCX's transports. Returns {path in the tree: file that was copied}."""
    sources = {}
    hydra = shutil.which(os.path.join(os.path.dirname(launcher), "mpiexec.hydra")) or shutil.which("mpiexec.hydra")
    if not hydra:
        raise Missing("no mpiexec.hydra in PATH")
    hydra = os.path.realpath(hydra)
    copy(sources, hydra, tree, "bin/mpiexec")
    copy(sources, os.path.join(os.path.dirname(hydra), "hydra_pmi_proxy"), tree, "bin/hydra_pmi_proxy")
    programs = files_in(os.path.join(tree, "bin"))

    # UCX opens its transports by name, from the folder ucx next to its own libraries.
    ucs = [path for soname, path in loaded_by(programs).items() if soname.startswith("libucs.so")]
    modules = os.path.join(os.path.dirname(os.path.realpath(ucs[0])), "ucx") if ucs else ""
    transports = []
    for name in sorted(os.listdir(modules)) if os.path.isdir(modules) else []:
        # A transport cannot be loaded if a driver library is missing.
        if re.search(r"\.so\.\d+$", name) and can_be_loaded(os.path.join(modules, name)):
            copy(sources, os.path.join(modules, name), tree, f"lib/ucx/{name}")
            transports.append(os.path.join(tree, "lib/ucx", name))
    for soname, path in loaded_by([*programs, *transports]).items():
        if not os.path.exists(os.path.join(tree, "lib/ucx", soname)):
            copy(sources, path, tree, f"lib/{soname}")

    for files, path in ((programs, "$ORIGIN/../lib"), (files_in(os.path.join(tree, "lib")), "$ORIGIN"), (transports, "$ORIGIN:$ORIGIN/..")):
        for file in files:
            if os.path.isfile(file):
                subprocess.run(["patchelf", "--set-rpath", path, file], check=True)
    # libucs asks for libuct_x.so.0 and, on older versions, for libuct_x.so.
    for file in transports:
        os.symlink(os.path.basename(file), re.sub(r"\.\d+$", "", file))
    return sources
