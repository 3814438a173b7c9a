"""What a check found, in words for an operator."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Severity(Enum):
    """How much a finding matters, least first."""

    FINE = "ok"
    NOTE = "note"
    """How it is meant to be, and worth knowing."""
    WARNING = "warning"
    """It works, but worse, or less safely, than it could."""
    WRONG = "wrong"
    """A node cannot start like this, or cannot keep what it promises."""


class Finding(Struct, frozen=True):
    """``about``: the thing in one or two words. ``sentence``: how it is; ``remedy``: what to do, if anything."""

    severity: Severity
    about: str
    sentence: str
    remedy: str = ""


def fine(about: str, sentence: str) -> Finding:
    return Finding(Severity.FINE, about, sentence)


def note(about: str, sentence: str, remedy: str = "") -> Finding:
    return Finding(Severity.NOTE, about, sentence, remedy)


def warning(about: str, sentence: str, remedy: str) -> Finding:
    return Finding(Severity.WARNING, about, sentence, remedy)


def wrong(about: str, sentence: str, remedy: str) -> Finding:
    return Finding(Severity.WRONG, about, sentence, remedy)
