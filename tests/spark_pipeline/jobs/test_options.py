"""What commands are given: sizes and rates, and options of both sides that need not stand on a command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from spark_pipeline.jobs.archive.command import command as archive
from spark_pipeline.jobs.audit.command import command as audit
from spark_pipeline.jobs.command_options import Size, read_side_options, side_options
from spark_pipeline.jobs.migrate.command import command as migrate
from spark_pipeline.jobs.replay.command import command as replay


def test_rates_are_numbers_with_units() -> None:
    rate = Size(per_second=True)
    given = ("200MB/s", "1.5 KiB", "7", "2gb/s")
    assert [rate.convert(one, None, None) for one in given] == [200_000_000, 1536, 7, 2_000_000_000]
    for wrong in ("", "fast", "0", "-1", "-1MB", "5 XB"):
        with pytest.raises(click.BadParameter):
            rate.convert(wrong, None, None)


def told(*words: str) -> tuple[dict[str, str], Result]:
    """What a command makes of its options, and how it ended."""
    found: dict[str, Any] = {}

    @click.command()
    @side_options
    def command(**options: Any) -> None:
        sides = read_side_options(**options)
        found.update(source=dict(sides.source), target=dict(sides.target))

    done = CliRunner().invoke(command, words)
    return found, done


def test_secrets_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, secret = tmp_path / "options.json", tmp_path / "password"
    file.write_text(json.dumps({"source": {"password": "of the file", "timeoutMs": 5}, "target": {"user": "ann"}}))
    secret.write_text("of its own file\n")
    monkeypatch.setenv("ANABRANCH_SOURCE_OPTIONS", '{"user": "of the environment", "password": "hidden"}')
    monkeypatch.setenv("ANABRANCH_TARGET_OPTIONS", '{"password": "too"}')
    found, done = told()
    assert found == {"source": {"user": "of the environment", "password": "hidden"}, "target": {"password": "too"}}
    found, done = told("--options", str(file))
    assert found["source"] == {"user": "of the environment", "password": "of the file", "timeoutMs": "5"}
    assert found["target"] == {"user": "ann", "password": "too"}
    found, done = told("--option", f"password=@{secret}", "--right-option", "user=bob")
    assert (found["source"]["password"], found["target"]["user"]) == ("of its own file", "bob")
    assert done.stderr == ""


def test_a_password_on_the_command_line_is_told_of() -> None:
    found, done = told("--source-option", "kafka.sasl.password=secret")
    assert found["source"] == {"kafka.sasl.password": "secret"}
    assert "can be read by everybody" in done.stderr
    assert "secret" not in done.stderr.replace("secret=", "")


@pytest.mark.parametrize("wrong", ["[]", "{", '{"source": 7}', '{"other": {}}', '{"source": {"a": []}}'])
def test_files_that_are_no_options(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "options.json"
    file.write_text(wrong)
    _, done = told("--options", str(file))
    assert done.exit_code == 2
    assert str(file) in done.stderr


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *((audit, name) for name in ("check", "gaps", "digest", "diff", "cross")),
        *((archive, name) for name in ("run", "status", "verify")),
        *((migrate, name) for name in ("plan", "run", "resume", "status", "verify", "cutover", "sync-groups", "abort")),
        (replay, None),
    ],
)
def test_all_commands_take_options_from_a_file(group: Any, name: str | None) -> None:
    command = group if name is None else group.commands[name]
    names = {word for one in command.params for word in one.opts}
    assert {"--options", "--source-option", "--option", "--target-option"} <= names
