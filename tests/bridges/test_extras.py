"""What is missing without an extra is told in one sentence, by every command."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bridges.commands.failure import EXIT_CANNOT_START, EXIT_USAGE
from bridges.extras import remedy

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
MODULES = {"kafka-python": "kafka", "pyjwt": "jwt"}
"""Where a distribution's module is called otherwise."""
DATABASE = "cluster.database=postgresql://nobody@127.0.0.1:1/none"
OAUTH = ("--set", "auth.oauth_keys=keys.json", "--set", "auth.oauth_issuer=us", "--set", "auth.oauth_audience=it")
OBJECTS = ("--set", "sbp.durability=object", "--set", "sbp.objects=file:///nowhere")


@pytest.mark.parametrize("extra", ["cluster", "oauth", "spark", "ydb"])
def test_every_package_of_an_extra_is_known(extra: str) -> None:
    for one in tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"][extra]:
        name = re.split(r"[\[>=<]", one)[0]
        module = MODULES.get(name, name)
        assert remedy(ModuleNotFoundError(name=f"{module}.part")) == f"pip install 'anabranch[{extra}]'"
    assert remedy(ModuleNotFoundError(name="bridges.gone")) is None


@pytest.mark.parametrize(
    ("missing", "arguments", "code", "told"),
    [
        ("psycopg", ["serve", "--data", "DIR", "--set", DATABASE], EXIT_USAGE, "anabranch[cluster]"),
        ("obstore", ["serve", "--data", "DIR", *OBJECTS], EXIT_CANNOT_START, "anabranch[cluster]"),
        ("jwt", ["serve", "--data", "DIR", *OAUTH], EXIT_USAGE, "anabranch[oauth]"),
        ("psycopg", ["upgrade-to-cluster", "--data", "DIR", "--set", DATABASE], EXIT_USAGE, "anabranch[cluster]"),
        ("pyarrow", ["audit", "gaps", "anabranch://127.0.0.1:1", "--topics", "x"], EXIT_USAGE, "anabranch[spark]"),
    ],
)
def test_a_missing_package_is_one_sentence(
    missing: str, arguments: list[str], code: int, told: str, tmp_path: Path
) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from bridges.commands.cli import main; main(sys.argv[1:])"
    given = [one.replace("DIR", str(tmp_path / "data")) for one in arguments]
    listen = [one for name in ("kafka", "console") for one in ("--listen", f"{name}=127.0.0.1:0")]
    given += listen if given[0] == "serve" else []
    done = subprocess.run([sys.executable, "-c", script, *given], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert told in done.stderr.splitlines()[-1]


def test_the_upgrade_to_a_cluster_needs_no_more_than_a_node_of_one() -> None:
    missing = ("numpy", "pyarrow", "xxhash", "pyspark")
    script = f"import sys; sys.modules.update(dict.fromkeys({missing})); import spark_pipeline.jobs.upgrade.upgrade"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
