"""What all fronts share: partition logs, formats, the catalog, and the node that puts everything together."""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    # structlog imports all of rich where that is installed, for tracebacks that are never shown here; it took a sixth
    # of the time of a node's start. Whoever has use for rich imports it as ever.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
