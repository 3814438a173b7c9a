"""How far tests look that draw what they try: far enough in every run, many times as far with `make thorough`."""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100  # what hypothesis tries unless it is told otherwise


def examples(usual: int) -> int:
    """How many examples a test tries: ``usual`` of them, and with the profile `thorough` in proportion more."""
    return usual * factor()


def factor() -> int:
    """How many times as far as usual: 1, or 20 with the profile `thorough`."""
    return max(1, settings().max_examples // _USUAL)


def timeout(usual: float) -> float:
    """Seconds for a test that goes as far as told."""
    return usual if factor() == 1 else 36_000
