"""The core that all fronts share: partition logs, formats, the catalog, and the node that assembles them."""

import sys

# structlog imports all of rich, if installed, for tracebacks that a node never shows: a sixth of a node's start-up
# time. msgspec imports typing_extensions for names that typing has as well. Code that needs these packages can still
# import them.
_hidden = {"rich": "structlog", "typing_extensions": "msgspec"}
_hidden = {name: user for name, user in _hidden.items() if name not in sys.modules and user not in sys.modules}
sys.modules.update(dict.fromkeys(_hidden))  # type: ignore[arg-type]
try:
    import msgspec  # noqa: F401
    import structlog  # noqa: F401
finally:
    for _name in _hidden:
        del sys.modules[_name]
