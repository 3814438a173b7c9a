"""The services of a file of compose/, started as a user does it, and what may happen to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from docker.models.containers import Container

from tests.compose.engine import COMPOSE, Engine
from tests.kit.waiting import wait_until


class Services:
    """``kind``: the directory of compose/. ``ports``: of this machine, by the variable's name without ``_PORT``."""

    def __init__(
        self, engine: Engine, kind: str, ports: Mapping[str, int], project: str, more: Mapping[str, str]
    ) -> None:
        self.engine = engine
        self.ports = ports
        self.project = project
        self._file = COMPOSE / kind / "compose.yaml"
        self.environment = {
            **{f"{name}_PORT": str(port) for name, port in ports.items()},
            "OPEN_FILES": "16384",
            **more,
        }

    def compose(self, *arguments: str, seconds: float = 300.0) -> str:
        return self.engine.compose(self._file, self.project, *arguments, environment=self.environment, seconds=seconds)

    def container(self, service: str) -> Container:
        return self.engine.container(self.compose("ps", "-q", service).strip())

    def exit_code(self, service: str) -> int:
        code: int = self.container(service).attrs["State"]["ExitCode"]
        return code

    def healthy(self, service: str, seconds: float = 240.0) -> None:
        """Return when a service's health check has succeeded."""
        container = self.container(service)

        def is_healthy() -> bool:
            container.reload()
            return bool(container.attrs["State"]["Health"]["Status"] == "healthy")

        wait_until(is_healthy, f"{service} is healthy", seconds=seconds)

    def prometheus(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.ports['PROMETHEUS']}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
