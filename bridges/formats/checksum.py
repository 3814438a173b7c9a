"""CRC-32C from the package ``crc32c``: its extension alone.

Importing the package also imports its command line, and looks up its own version among the installed packages. That
takes 15 ms of every start, for one function.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c


def _extension() -> Any:
    package = PathFinder.find_spec("crc32c")
    if package is not None:
        spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    import crc32c as whole  # a release with another layout

    return whole


if not TYPE_CHECKING:
    crc32c = _extension().crc32c

__all__ = ["crc32c"]
