"""What all fronts share: partition logs, formats, the catalog, and the node that puts everything together."""

import sys

# structlog imports all of rich where that is installed, for tracebacks that are never shown here, which took a sixth of
# the time of a node's start; msgspec imports typing_extensions for what typing has as well. Whoever has use for them
# imports them as ever.
_hidden = {"rich": "structlog", "typing_extensions": "msgspec"}
_hidden = {name: user for name, user in _hidden.items() if name not in sys.modules and user not in sys.modules}
sys.modules.update(dict.fromkeys(_hidden))  # type: ignore[arg-type]
try:
    import msgspec  # noqa: F401
    import structlog  # noqa: F401
finally:
    for _name in _hidden:
        del sys.modules[_name]
