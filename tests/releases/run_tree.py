"""``python run_tree.py TREE -m bridges ...``: a node of another tree than the tests are of."""

from __future__ import annotations

import runpy
import sys

sys.path[0] = sys.argv[1]
sys.argv = ["bridges", *sys.argv[4:]]
runpy.run_module("bridges", run_name="__main__")
