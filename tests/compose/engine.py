"""A Docker engine for tests: the one that runs, or one of our own for as long as they take, and images for it.

Where no image registry is reached, stand-ins for published images are made of Debian's packages (compose/local).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
from docker.models.containers import Container

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
PYTHON = "python:3.11-slim-bookworm"
PUBLISHED = {
    "prometheus": "prom/prometheus:v2.55.1",
    "postgres": "postgres:17.2-bookworm",
    "versitygw": "versity/versitygw:v1.8.0",
    "kafka": "apache/kafka:4.2.1",
    "pravega": "pravega/pravega:0.13.0",
}
"""Images that the files of compose/ name, by their stand-ins' in compose/local."""
_DEBIAN = "anabranch-local/debian:bookworm"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class Engine:
    """One engine: ``client`` is Docker's own library. Images are built by the command, which alone has BuildKit, and
    Docker Compose is a command."""

    def __init__(self, host: str | None) -> None:
        self._environment = {**os.environ, "DOCKER_BUILDKIT": "1", **({"DOCKER_HOST": host} if host else {})}
        self.options = {"environment": self._environment}
        """Arguments of what makes a client."""
        self.client = docker.from_env(**self.options)
        self._docker = next(self._with_buildkit(), "docker")

    def _with_buildkit(self) -> Iterator[str]:
        """Clients that can build: a newer one needs a plug-in for it, Debian's has it within."""
        for client in (shutil.which("docker"), "/usr/bin/docker"):
            if client is not None and Path(client).exists():
                asked = subprocess.run([client, "build", "--help"], env=self._environment, capture_output=True)
                if asked.returncode == 0 and b"--secret" in asked.stdout:
                    yield client

    def container(self, identifier: str) -> Container:
        """Return a container as it is now."""
        return self.client.containers.get(identifier)

    def compose(
        self, file: Path, project: str, *arguments: str, environment: Mapping[str, str], seconds: float = 300.0
    ) -> str:
        """What Docker Compose prints, of either generation."""
        plugin = subprocess.run([self._docker, "compose", "version"], env=self._environment, capture_output=True)
        command = [self._docker, "compose"] if plugin.returncode == 0 else ["docker-compose"]
        command += ["--file", str(file), "--project-name", project, *arguments]
        return self._run(command, seconds, environment)

    def _run(self, command: Sequence[str], seconds: float, more: Mapping[str, str] | None = None) -> str:
        ran = subprocess.run(
            command, env={**self._environment, **(more or {})}, capture_output=True, text=True, timeout=seconds
        )
        assert ran.returncode == 0, f"{' '.join(command)}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def available(self, image: str) -> bool:
        """Whether there is an image of that name here or in a registry."""
        if self.client.images.list(image):
            return True
        with suppress(docker.errors.APIError):
            self.client.images.pull(image)
            return True
        return False

    def python_image(self) -> str:
        """The image that ours is built on, or Debian with its Python."""
        if self.available(PYTHON):
            return PYTHON
        if not self.client.images.list(_DEBIAN):
            self._bootstrap(_DEBIAN)
        return _DEBIAN

    def published(self, name: str, *files: Path) -> str:
        """An image of :data:`PUBLISHED`, or its stand-in. ``files``: what that is built of beside compose/local;
        a directory's are jars."""
        if self.available(PUBLISHED[name]):
            return PUBLISHED[name]
        tag = f"anabranch-local/{name}"
        with tempfile.TemporaryDirectory() as directory:
            context = Path(directory) / "context"
            shutil.copytree(COMPOSE / "local", context)
            for file in files:
                if file.is_dir():
                    shutil.copytree(file, context / "jars")
                else:
                    shutil.copy2(file, context)
            command = [self._docker, "build", "--quiet", "--build-arg", f"BASE={self.python_image()}", "--tag", tag]
            self._run([*command, "--file", str(context / f"{name}.Dockerfile"), str(context)], 1200)
        return tag

    def build(self, target: str, tag: str) -> str:
        """One of our images, as a user builds it."""
        command = [
            self._docker,
            "build",
            "--quiet",
            "--file",
            str(COMPOSE / "image" / "Dockerfile"),
            "--target",
            target,
        ]
        command += ["--build-arg", f"PYTHON_IMAGE={self.python_image()}", "--tag", tag]
        if _CERTIFICATES.exists():
            command += ["--secret", f"id=ca,src={_CERTIFICATES}"]
        self._run([*command, str(ROOT)], 1200)
        return tag

    def _bootstrap(self, tag: str) -> None:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory) / "root"
            packages = "--include=python3,python3-venv,ca-certificates"
            bootstrap = ["debootstrap", "--variant=minbase", packages, "bookworm", str(root)]
            subprocess.run(bootstrap, check=True, capture_output=True, timeout=600)
            packed = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
            subprocess.run(
                [self._docker, "import", "-", tag],
                stdin=packed.stdout,
                env=self._environment,
                check=True,
                capture_output=True,
            )
            assert packed.wait() == 0


def _reach(host: str | None) -> Engine | None:
    with suppress(docker.errors.DockerException):
        return Engine(host)  # its client asks the engine for its version
    return None


@contextmanager
def engine() -> Iterator[Engine]:
    """The engine that answers, or one of our own, which keeps its images below the cache of whoever runs this."""
    there = _reach(None)
    if there is not None:
        yield there
        return
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "anabranch-docker"
    home.mkdir(parents=True, exist_ok=True)
    socket = home / "docker.sock"
    command = ["dockerd", "--host", f"unix://{socket}", "--data-root", str(home / "data"), "--ip", "127.0.0.1"]
    command += ["--exec-root", str(home / "exec"), "--pidfile", str(home / "dockerd.pid")]
    command += ["--bip", "172.29.0.1/24", "--default-address-pool", "base=172.29.128.0/17,size=24"]
    with (home / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while (own := _reach(f"unix://{socket}")) is None:
            assert daemon.poll() is None, (home / "dockerd.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the Docker engine did not answer in a minute"
            time.sleep(0.1)
        yield own
    finally:
        daemon.terminate()
        daemon.wait(60)
