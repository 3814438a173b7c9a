"""Helm, built through the Go module proxy once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.drivers import Program

_MODULE = "helm.sh/helm/v3/cmd/helm@v3.18.6"


def _build(directory: Path) -> Sequence[str]:
    return ["env", f"GOBIN={directory}", "CGO_ENABLED=0", "go", "install", "-trimpath", "-ldflags=-s -w", _MODULE]


PROGRAM = Program("helm", "go", [], _build, lambda directory: [str(directory / "helm")], variant=_MODULE)
