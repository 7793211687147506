#!/usr/bin/env python3
"""Draws the figures of a run: python/shardmark/figures.py from a checkout or a bundle.

    scripts/figures.py RUN_DIR [--only KIND]
"""
import importlib.util
import os
import sys

# A separate Python may lack the packages of Debian's.
if importlib.util.find_spec("matplotlib") is None:
    DEBIAN = "/usr/bin/python3"
    if os.path.realpath(sys.executable) != os.path.realpath(DEBIAN) and os.path.exists(DEBIAN):
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    print("figures: Python's matplotlib is missing: scripts/install, or pip install matplotlib", file=sys.stderr)
    sys.exit(3)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
from shardmark.figures import main  # noqa: E402

sys.exit(main())
