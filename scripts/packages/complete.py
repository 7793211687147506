#!/usr/bin/env python3
"""Completes an installed tree as a package; CMake calls it.

    complete.py bundle|debian TREE --build DIR --version VERSION [--launcher FILE]

bundle adds the launcher, the libraries and their licences. debian adds the link to the Python package
and the Debian changelog. Both write share/doc/shardmark/sbom.spdx.json.
"""
import argparse
import email.utils
import gzip
import json
import os
import shutil
import subprocess
import sys
import time

import debian_packages
import libraries
import sbom

DOCUMENTS = "share/doc/shardmark"
# Headers of the compiler and of the machine's interface.
NO_DEPENDENCY = ("gcc-", "g++-", "libgcc-", "libstdc++-", "libc6-dev", "linux-libc-dev", "cpp-")


def compiled_packages(build):
    """Returns the packages whose headers the program is compiled with, as recorded by ninja."""
    said = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    # Relative to the build folder, in indented lines.
    files = {os.path.normpath(os.path.join(build, line.strip())) for line in said.splitlines() if line.startswith("    ")}
    packages = debian_packages.owners([file for file in files if file.startswith("/usr/")]).values()
    return {package for package in packages if not package.name.startswith(NO_DEPENDENCY)}


def copy_licenses(tree, packages):
    """Copies the copyright file of each package, and Debian's licences that they refer to."""
    folder = os.path.join(tree, DOCUMENTS, "licenses")
    os.makedirs(folder, exist_ok=True)
    for package in packages:
        shutil.copyfile(package.copyright_file, os.path.join(folder, package.name))
        for common in debian_packages.common_licenses(package.license_text):
            shutil.copyfile(common, os.path.join(folder, os.path.basename(common)))


def write_debian_files(tree, version, maintainer):
    date = email.utils.formatdate(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    text = f"shardmark ({version}-1) unstable; urgency=medium\n\n  * Version {version}; changelog.gz lists the changes.\n\n -- {maintainer}  {date}\n"
    with open(os.path.join(tree, DOCUMENTS, "changelog.Debian.gz"), "wb") as file:
        file.write(gzip.compress(text.encode(), 9, mtime=0))
    folder = os.path.join(tree, "lib/python3/dist-packages")
    os.makedirs(folder, exist_ok=True)
    os.symlink("../../../share/shardmark/scripts/python/shardmark", os.path.join(folder, "shardmark"))


def main():
    parser = argparse.ArgumentParser(description="Completes an installed tree as a package.")
    parser.add_argument("kind", choices=["bundle", "debian"])
    parser.add_argument("tree")
    parser.add_argument("--build", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--maintainer", required=True)
    parser.add_argument("--launcher", default="")
    words = parser.parse_args()
    compiled = compiled_packages(words.build)
    copied, linked = {}, set()
    if words.kind == "bundle":
        sources = libraries.fill(words.tree, words.launcher)
        owners = debian_packages.owners(sources.values())
        copied = {path: owners[source] for path, source in sources.items() if source in owners}
        copy_licenses(words.tree, {*copied.values(), *compiled})
    else:
        write_debian_files(words.tree, words.version, words.maintainer)
        found = libraries.loaded_by([os.path.join(words.tree, "bin/shardmark")])
        linked = set(debian_packages.owners(found.values()).values())
    target = os.path.join(words.tree, DOCUMENTS, "sbom.spdx.json")
    document = sbom.document(words.tree, words.version, copied, linked, compiled)
    with open(target, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    print(f"complete: {len(document['files'])} files, {len(document['packages']) - 1} packages: {DOCUMENTS}/sbom.spdx.json")


if __name__ == "__main__":
    try:
        main()
    except libraries.Missing as missing:
        print(f"complete: {missing}", file=sys.stderr)
        sys.exit(3)
