"""Results of checks, in words for an operator."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Severity(Enum):
    """The importance of a finding, from least to most."""

    FINE = "ok"
    NOTE = "note"
    """As intended, but worth knowing."""
    WARNING = "warning"
    """It works, but worse or less safely than it could."""
    WRONG = "wrong"
    """A node cannot start like this, or cannot keep its promises."""


class Finding(Struct, frozen=True):
    """The result of a check.

    ``about``: the subject in one or two words. ``sentence``: its state. ``remedy``: what to do, empty for nothing.
    """

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
