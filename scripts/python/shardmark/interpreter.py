"""The Python that has matplotlib."""
import importlib.util
import os
import sys

DEBIAN = "/usr/bin/python3"


def need_matplotlib():
    """Starts the program again with Debian's Python if this one, such as a virtual environment, lacks matplotlib."""
    if importlib.util.find_spec("matplotlib") is not None:
        return
    if os.path.realpath(sys.executable) != os.path.realpath(DEBIAN) and os.path.exists(DEBIAN):
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    print("figures: Python's matplotlib is missing: scripts/install, or pip install matplotlib", file=sys.stderr)
    sys.exit(3)
