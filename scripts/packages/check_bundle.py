#!/usr/bin/env python3
"""Unpacks a bundle and checks that it is self-contained.

    scripts/packages/check_bundle.py FILE

Every library of every process of the bundle comes from the bundle or belongs to the machine, and the
list of files (SPDX) names each file with its checksum.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile

import libraries
import sbom

FEWEST_PROCESSES = 5  # the program itself, the launcher, its proxy, two ranks
RUN = ["run", "all_reduce", "--ranks", "2", "--bytes", "1KiB", "--algorithm", "ring", "--dtype", "float",
       "--transport", "shared_memory,mpi"]


class Bad(Exception):
    """A finding."""


def run(program, place, *words, **environment):
    done = subprocess.run([program, *words], cwd="/", capture_output=True, text=True, check=False,
                          env={"PATH": "/usr/bin:/bin", "HOME": place, "PYTHONDONTWRITEBYTECODE": "1", **environment})
    if done.returncode != 0:
        raise Bad(f"shardmark {words[0]}: exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout


def check_processes(tree, place):
    """Returns the number of processes of the bundle, and the verdict of their run."""
    os.mkdir(os.path.join(place, "loader"))
    said = run(os.path.join(tree, "shardmark"), place, *RUN, "--out", os.path.join(place, "run"),
               LD_DEBUG="files", LD_DEBUG_OUTPUT=os.path.join(place, "loader", "p"))
    processes = 0
    for log in glob.glob(os.path.join(place, "loader", "p.*")):
        with open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        # Programs of the machine, such as the shell and Python, may load any library.
        if f"initialize program: {tree}/" not in text:
            continue
        processes += 1
        loaded = re.findall(r"calling init: (.*)", text)
        strangers = {os.path.basename(path) for path in loaded if not path.startswith(f"{tree}/")}
        strangers = sorted(name for name in strangers if not libraries.OF_THE_MACHINE.match(name))
        if strangers:
            raise Bad(f"not from the bundle: {' '.join(strangers)}")
    if processes < FEWEST_PROCESSES:
        raise Bad(f"only {processes} processes of the bundle were seen")
    return processes, re.search(r"^(?:ACCEPTED|REJECTED).*", said, re.MULTILINE)[0]


def check_list(tree):
    """Returns the number of files."""
    path = "share/doc/shardmark/sbom.spdx.json"
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        document = json.load(file)
    listed = {file["fileName"].removeprefix("./"): file["checksums"][1]["checksumValue"] for file in document["files"]}
    there = {name: sbom.digest(os.path.join(tree, name), "sha256") for name in sbom.files_of(tree) if name != path}
    differing = sorted(name for name in listed.keys() | there.keys() if listed.get(name) != there.get(name))
    if differing:
        raise Bad(f"{path} does not describe {' '.join(differing)}")
    licensed = set(os.listdir(os.path.join(tree, "share/doc/shardmark/licenses")))
    unlicensed = sorted({package["name"] for package in document["packages"]} - licensed - {"shardmark"})
    if unlicensed:
        raise Bad(f"licences are missing: {' '.join(unlicensed)}")
    return len(listed)


def check(file):
    with tempfile.TemporaryDirectory() as place:
        folder = os.path.join(place, "a folder")
        with tarfile.open(file) as archive:
            archive.extractall(folder)
        tree, = glob.glob(os.path.join(folder, "shardmark-*"))
        program = os.path.join(tree, "shardmark")
        if "all_reduce" not in run(program, place, "list"):
            raise Bad("shardmark list does not contain all_reduce")
        if "gpt3_175b" not in run(program, place, "recipes", "list"):
            raise Bad("shardmark recipes list does not contain gpt3_175b")
        processes, verdict = check_processes(tree, place)
        files = check_list(tree)
    print(f"{os.path.basename(file)} is self-contained: none of {processes} processes loaded another library; {files} files")
    print(verdict)


if __name__ == "__main__":
    try:
        check(sys.argv[1])
    except Bad as bad:
        print(f"check_bundle: {bad}", file=sys.stderr)
        sys.exit(1)
