"""The Debian packages that files belong to, and their licences."""
import os
import re
import subprocess
from dataclasses import dataclass

COMMON_LICENSES = "/usr/share/common-licenses"


@dataclass(frozen=True, order=True)
class Package:
    name: str
    version: str
    architecture: str

    @property
    def copyright_file(self):
        return f"/usr/share/doc/{self.name}/copyright"

    @property
    def license_text(self):
        with open(self.copyright_file, encoding="utf-8", errors="replace") as file:
            return file.read()


def owners(paths):
    """Returns {path: Package} of the files that dpkg knows."""
    # dpkg lists the names from before /lib became a link to /usr/lib.
    asked = {}
    for path in paths:
        for one in {path, os.path.realpath(path)}:
            asked[one] = asked[one.removeprefix("/usr")] = path
            if not one.startswith("/usr/"):
                asked["/usr" + one] = path
    names = {}
    words = sorted(asked)
    for begin in range(0, len(words), 500):
        said = subprocess.run(["dpkg", "-S", *words[begin:begin + 500]], capture_output=True, text=True, check=False).stdout
        for line in said.splitlines():
            name, _, file = line.rpartition(": ")
            if file in asked and not name.startswith("diversion "):
                names[asked[file]] = name.split(",")[0].split(":")[0]
    packages = {name: described(name) for name in set(names.values())}
    return {path: packages[name] for path, name in names.items()}


def described(name):
    said = subprocess.run(["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\n", name], capture_output=True, text=True,
                          check=True).stdout
    return Package(*said.splitlines()[0].split("\t"))


def common_licenses(text):
    """Returns the paths of Debian's licences to which a text refers."""
    names = re.findall(rf"{COMMON_LICENSES}/([\w.+-]*\w)", text)
    return sorted({path for path in (os.path.join(COMMON_LICENSES, name) for name in names) if os.path.isfile(path)})
