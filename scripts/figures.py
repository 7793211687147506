#!/usr/bin/env python3
"""Draws the figures of a run: python/shardmark/figures.py from a checkout or a bundle.

    scripts/figures.py RUN_DIR [--only KIND]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
from shardmark.interpreter import need_matplotlib  # noqa: E402

need_matplotlib()
from shardmark.figures import main  # noqa: E402

sys.exit(main())
