"""Build steps beside pyproject.toml: wheels and sdists get a file with the commit they are built from."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

# Not imported: the package needs dependencies, which a build does not have.
_VERSION = runpy.run_path(str(Path(__file__).parent / "bridges" / "version.py"))


def _write_commit(root: str) -> None:
    # An image is built without .git, and gives the commit in the environment (compose/image/Dockerfile).
    if commit := os.environ.get("ANABRANCH_COMMIT") or _VERSION["find_commit"]():
        (Path(root) / "bridges" / _VERSION["COMMIT"]).write_text(f"{commit}\n", "ascii")


class _BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            _write_commit(self.build_lib)


class _Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        _write_commit(base_dir)


setup(cmdclass={"build_py": _BuildPy, "sdist": _Sdist})
