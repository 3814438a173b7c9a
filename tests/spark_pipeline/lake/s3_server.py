"""A server of S3's protocol for tests: S3Proxy, which keeps objects in a directory. Needs Java."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.fs as pafs

from benchmarks.java_server import SHORT_LIVED_JAVA, JavaServer, fetch_jars
from benchmarks.tools import TOOLS
from tests.ports import free_port

POM = Path(__file__).resolve().parent / "s3proxy" / "pom.xml"
BUCKET = "lake"
_KEY, _SECRET = "key-of-tests", "secret-of-tests"


class S3Server(JavaServer):
    """``start`` returns when it serves; ``environment`` is what its clients need."""

    started = "Started ogsoejs.Server"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 60.0)
        self.port = free_port()

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """AWS's variables."""
        return {
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_ENDPOINT_URL": self.bootstrap,
            "AWS_REGION": "us-east-1",
            # S3's newest checksums are not known to every server that speaks its protocol.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }

    def command(self) -> Sequence[str]:
        """Write the settings; the server's command line."""
        objects = self.directory / "objects"
        objects.mkdir(exist_ok=True)
        settings = {
            "s3proxy.endpoint": self.bootstrap,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.ignore-unknown-headers": "true",  # checksums of requests that delete many objects
            "s3proxy.identity": _KEY,
            "s3proxy.credential": _SECRET,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": "none",
            "jclouds.credential": "none",
            "jclouds.filesystem.basedir": str(objects),
        }
        config = self.directory / "s3proxy.conf"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (jar,) = fetch_jars(POM, TOOLS / "s3proxy").glob("*.jar")
        return ["java", "-Xmx256m", *SHORT_LIVED_JAVA, "-jar", str(jar), "--properties", str(config)]

    def make_bucket(self) -> None:
        """The bucket that tests share."""
        pafs.S3FileSystem(
            access_key=_KEY,
            secret_key=_SECRET,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir(BUCKET)
