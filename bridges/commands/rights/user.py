"""``anabranch user``: add, remove, list, passwd. Edits the file of users, whether or not a node runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridges.commands.common import (
    NOTHING,
    json_option,
    load_settings,
    node_flags,
    print_json,
    print_result,
    print_table,
    read_password,
    settings_options,
)
from bridges.commands.failure import EXIT_USAGE, fail

if TYPE_CHECKING:
    from bridges.auth.users import User


@click.group("user")
def command() -> None:
    """Add, remove and list users, and change passwords.

    Users are kept in a file in the data directory (setting auth.users_file). A running node sees changes within a
    second. On a terminal, the command asks for the password; otherwise the password is the first line of standard
    input.
    """


class _File:
    """The file of users that the options name. Every failure ends the command with a sentence."""

    def __init__(self, data: Path | None, config: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
        self.as_json = as_json
        self.path = load_settings(node_flags(data, sets, ()), config).settings.auth_options.users_file

    def users(self) -> dict[str, User]:
        from bridges.auth.users import UsersError, load

        try:
            return load(self.path)
        except UsersError as error:
            fail(str(error))

    def change(self, edit: Callable[[dict[str, User]], None]) -> None:
        from bridges.auth.users import UsersError, change

        try:
            change(self.path, edit)
        except UsersError as error:
            fail(str(error))

    def make_user(self, name: str, mechanisms: Iterable[str]) -> User:
        """Ask for a password, and return a user with it."""
        from bridges.auth.passwords import PasswordHash
        from bridges.auth.scram import ScramKeys
        from bridges.auth.users import User, UsersError, check_name, check_password

        try:
            check_name(name)
            password = read_password(name)
            check_password(password)
        except UsersError as error:
            fail(str(error), EXIT_USAGE)
        scram = {mechanism: ScramKeys.from_password(password, mechanism) for mechanism in mechanisms}
        return User(name, PasswordHash.from_password(password), scram)


def _edits_file(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name the file of users; the command gets it as ``file``."""

    @wraps(function)
    def edit(data: Path | None, config: Path | None, sets: tuple[str, ...], as_json: bool, **given: Any) -> None:
        function(file=_File(data, config, sets, as_json), **given)

    data = click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory of the node.")
    return data(settings_options(json_option(edit)))


@command.command("add")
@click.argument("name")
@click.option(
    "--scram", is_flag=True, help="Allow SCRAM logins too; the stored SCRAM keys are weaker than the password hash."
)
@_edits_file
def add(name: str, scram: bool, file: _File) -> None:
    """Add the user NAME."""
    from bridges.auth.scram import MECHANISMS

    def edit(users: dict[str, User]) -> None:
        if name in users:
            fail(f"there is a user {name} already; 'anabranch user passwd' changes the password")
        users[name] = user

    user = file.make_user(name, MECHANISMS if scram else ())
    file.change(edit)
    print_result({"user": name, "scram": sorted(user.scram)}, f"added {name} in {file.path}", as_json=file.as_json)


@command.command("remove")
@click.argument("name")
@_edits_file
def remove(name: str, file: _File) -> None:
    """Remove the user NAME. Its tokens are refused, and its connections end."""

    def edit(users: dict[str, User]) -> None:
        if users.pop(name, None) is None:
            fail(f"there is no user {name}")

    file.change(edit)
    print_result({"user": name}, f"removed {name} from {file.path}", as_json=file.as_json)


@command.command("passwd")
@click.argument("name")
@_edits_file
def passwd(name: str, file: _File) -> None:
    """Change the password of the user NAME. Its tokens are refused, and its connections end."""
    before = file.users().get(name)
    if before is None:
        fail(f"there is no user {name}")
    user = file.make_user(name, before.scram)

    def edit(users: dict[str, User]) -> None:
        if name not in users:
            fail(f"there is no user {name}")
        users[name] = user

    file.change(edit)
    text = f"changed the password of {name} in {file.path}"
    print_result({"user": name, "scram": sorted(user.scram)}, text, as_json=file.as_json)


@command.command("list")
@_edits_file
def list_(file: _File) -> None:
    """List all users."""
    rows = [(name, sorted(user.scram)) for name, user in sorted(file.users().items())]
    if file.as_json:
        print_json([{"user": name, "scram": scram} for name, scram in rows])
    else:
        print_table(["USER", "SCRAM"], ([name, ", ".join(scram) or NOTHING] for name, scram in rows))
