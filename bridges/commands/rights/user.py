"""``anabranch user``: add, remove, list, passwd. Edits the file of users, whether or not a node runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from bridges.commands.cli import EXIT_USAGE
from bridges.commands.common import fail, json_option, key_values, print_json, print_table

if TYPE_CHECKING:
    from bridges.auth.users import User

F = TypeVar("F", bound=Callable[..., object])


@click.group("user")
def command() -> None:
    """Add, remove and list users, and change passwords.

    Users are kept in a file in the data directory (setting auth.users_file). A running node sees changes within a
    second. On a terminal, the command asks for the password; otherwise the password is the first line of standard
    input.
    """


def _file_options(function: F) -> F:
    for option in (
        json_option,
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="KEY=VALUE",
            help="Value of a setting; 'anabranch config' lists all settings.",
        ),
        click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar="ANABRANCH_CONFIG",
            help="Settings file of the node.",
        ),
        click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory of the node."),
    ):
        function = option(function)
    return function


@command.command("add")
@click.argument("name")
@click.option(
    "--scram", is_flag=True, help="Allow SCRAM logins too; the stored SCRAM keys are weaker than the password hash."
)
@_file_options
def add(name: str, scram: bool, data: Path | None, config: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Add the user NAME."""
    from bridges.auth.scram import MECHANISMS

    def edit(users: dict[str, User]) -> None:
        if name in users:
            fail(f"there is a user {name} already; 'anabranch user passwd' changes the password", as_json=as_json)
        users[name] = user

    path = _path(data, config, sets, as_json)
    user = _user(name, list(MECHANISMS) if scram else [], as_json)
    _change(path, edit, as_json)
    _say({"user": name, "scram": sorted(user.scram)}, f"added {name} in {path}", as_json)


@command.command("remove")
@click.argument("name")
@_file_options
def remove(name: str, data: Path | None, config: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Remove the user NAME. Its tokens are refused, and its connections end."""

    def edit(users: dict[str, User]) -> None:
        if users.pop(name, None) is None:
            fail(f"there is no user {name}", as_json=as_json)

    path = _path(data, config, sets, as_json)
    _change(path, edit, as_json)
    _say({"user": name}, f"removed {name} from {path}", as_json)


@command.command("passwd")
@click.argument("name")
@_file_options
def passwd(name: str, data: Path | None, config: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Change the password of the user NAME. Its tokens are refused, and its connections end."""
    path = _path(data, config, sets, as_json)
    before = _users(path, as_json).get(name)
    if before is None:
        fail(f"there is no user {name}", as_json=as_json)
    user = _user(name, list(before.scram), as_json)

    def edit(users: dict[str, User]) -> None:
        if name not in users:
            fail(f"there is no user {name}", as_json=as_json)
        users[name] = user

    _change(path, edit, as_json)
    _say({"user": name, "scram": sorted(user.scram)}, f"changed the password of {name} in {path}", as_json)


@command.command("list")
@_file_options
def list_(data: Path | None, config: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """List all users."""
    users = _users(_path(data, config, sets, as_json), as_json)
    rows = [(name, sorted(user.scram)) for name, user in sorted(users.items())]
    if as_json:
        print_json([{"user": name, "scram": scram} for name, scram in rows])
    else:
        print_table(["USER", "SCRAM"], ([name, ", ".join(scram) or "-"] for name, scram in rows))


def _path(data: Path | None, config: Path | None, sets: tuple[str, ...], as_json: bool) -> Path:
    from bridges.node.settings.config import load
    from bridges.node.settings.sections import SettingsError

    flags = key_values(sets, "--set")
    if data is not None:
        flags["data_dir"] = str(data)
    try:
        return load(flags, environ=os.environ, file=config).settings.auth_options.users_file
    except SettingsError as error:
        fail(str(error), EXIT_USAGE, as_json=as_json)


def _users(path: Path, as_json: bool) -> dict[str, User]:
    from bridges.auth.users import UsersError, load

    try:
        return load(path)
    except UsersError as error:
        fail(str(error), as_json=as_json)


def _user(name: str, mechanisms: list[str], as_json: bool) -> User:
    from bridges.auth.passwords import PasswordHash
    from bridges.auth.scram import ScramKeys
    from bridges.auth.users import User, UsersError, check_name, check_password

    try:
        check_name(name)
        password = _password(name)
        check_password(password)
    except UsersError as error:
        fail(str(error), EXIT_USAGE, as_json=as_json)
    scram = {mechanism: ScramKeys.from_password(password, mechanism) for mechanism in mechanisms}
    return User(name, PasswordHash.from_password(password), scram)


def _password(name: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    # Refuse bytes that are not UTF-8: no client could send them.
    line = sys.stdin.buffer.readline()
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        from bridges.auth.users import UsersError

        raise UsersError("the password is not UTF-8") from None


def _change(path: Path, edit: Callable[[dict[str, User]], None], as_json: bool) -> None:
    from bridges.auth.users import UsersError, change

    try:
        change(path, edit)
    except UsersError as error:
        fail(str(error), as_json=as_json)


def _say(document: object, text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(text)
