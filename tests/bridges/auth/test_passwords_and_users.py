"""What is kept of passwords, and the file of users: who is recognised, who is not, and what other processes see."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from bridges.auth import Principal
from bridges.auth.authenticator import AuthenticationBusy, Authenticator, AuthOptions
from bridges.auth.comparisons import MOST_WAITING
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.users import User, UsersError, change, check_name, check_password, load

CHEAP = Cost(n=16, r=1, p=1)


def put(path: Path, **passwords: str) -> None:
    """Have the file hold these users and no others."""

    def edit(users: dict[str, User]) -> None:
        users.clear()
        users.update(
            {name: User(name, PasswordHash.from_password(text, CHEAP), {}) for name, text in passwords.items()}
        )

    change(path, edit)


@pytest.fixture
async def auth(tmp_path: Path):
    put(tmp_path / "users.json", alice="wonder", bob="builder")
    made = Authenticator(AuthOptions(tmp_path / "users.json", tmp_path / "keys.json"))
    await made.load()
    yield made
    made.close()


def test_a_password_is_recognised_and_cannot_be_read() -> None:
    made = PasswordHash.from_password("wonder", CHEAP)
    again = PasswordHash.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.matches("wonder")
    assert not again.matches("wonder ")
    assert "wonder" not in json.dumps(made.to_json())
    assert PasswordHash.from_password("wonder", CHEAP).digest != made.digest, "the salt differs"
    assert not PasswordHash.of_nobody(CHEAP).matches("")


@pytest.mark.parametrize("cost", [(3, 8, 1), (0, 8, 1), (2**14, 0, 1), (2**14, 8, 0), (2**19, 8, 1), (2**14, 8, 10**6)])
def test_a_cost_that_nobody_could_pay_is_refused(cost: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="scrypt cannot"):
        Cost(*cost)


@pytest.mark.parametrize("name", ["alice", "a", "9", "alice@example.org", "a" * 128, "a+b-c_d.e"])
def test_an_ordinary_name_of_a_user_is_accepted(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "ANONYMOUS", "a:b", "a b", "a,b", "a=b", "-a", "a" * 129, "ä", "a\n", "../a"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(UsersError, match="cannot be a user's name"):
        check_name(name)


@pytest.mark.parametrize("password", ["", "a\0b", "ä" * 513])
def test_passwords_that_no_protocol_carries_are_refused(password: str) -> None:
    with pytest.raises(UsersError, match="a password has"):
        check_password(password)


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "users.json"
    previous = os.umask(0)
    try:
        put(path, alice="wonder")
    finally:
        os.umask(previous)
    assert [stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()] == [0o600, 0o600]
    assert list(load(path)) == ["alice"]


def test_two_who_change_the_file_do_not_lose_each_others_users(tmp_path: Path) -> None:
    path = tmp_path / "users.json"

    def add(name: str) -> None:
        change(path, lambda users: users.update({name: User(name, PasswordHash.from_password(name, CHEAP), {})}))

    names = [f"u{number}" for number in range(20)]
    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(load(path)) == sorted(names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 1}',
        '{"version": 1, "users": {"a": {}}}',
        '{"version": 1, "users": {"a b": {"scrypt": {"n": 16, "r": 1, "p": 1, "salt": "", "hash": ""}}}}',
        '{"version": 1, "users": {"a": {"scrypt": {"n": 16, "r": 1, "p": 1, "salt": "", "hash": "eA=="}}}}',
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "users.json").write_text(text)
    with pytest.raises(UsersError, match="a user's name" if "a b" in text else r"users\.json is no file of users"):
        load(tmp_path / "users.json")


def test_a_file_of_another_release_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text('{"version": 2, "users": {}}')
    with pytest.raises(UsersError, match="another release"):
        load(tmp_path / "users.json")


# --- the authenticator ------------------------------------------------------------------------------------------------


async def test_who_has_name_and_password_is_known(auth: Authenticator) -> None:
    assert await auth.verify("alice", "wonder") == Principal("User", "alice")
    assert await auth.verify("alice", "builder") is None
    assert await auth.verify("carol", "wonder") is None
    assert await auth.verify("alice", "") is None
    assert await auth.verify("alice", "x" * 5000) is None
    assert await auth.verify("alice", "\ud800") is None
    assert (auth.succeeded, auth.failed) == (1, 5)


async def test_a_password_that_was_right_is_not_hashed_again(auth: Authenticator, monkeypatch) -> None:
    hashed = count_hashes(monkeypatch)
    for _ in range(5):
        assert await auth.verify("alice", "wonder") is not None
    assert hashed == ["wonder"]
    assert await auth.verify("alice", "wrong") is None
    assert await auth.verify("alice", "wrong") is None
    assert hashed == ["wonder", "wrong", "wrong"]


async def test_a_name_that_nobody_has_costs_as_much_as_a_wrong_password(auth: Authenticator, monkeypatch) -> None:
    costs: list[Cost] = []
    matches = PasswordHash.matches
    monkeypatch.setattr(PasswordHash, "matches", lambda self, text: costs.append(self.cost) or matches(self, text))
    assert await auth.verify("alice", "guess") is None
    assert await auth.verify("nobody", "guess") is None
    assert costs == [CHEAP, CHEAP]


async def test_many_who_log_in_alike_wait_for_one_comparison(auth: Authenticator, monkeypatch) -> None:
    hashed = count_hashes(monkeypatch)
    found = await asyncio.gather(*(auth.verify("alice", "wonder") for _ in range(500)))
    assert {str(principal) for principal in found} == {"User:alice"}
    assert hashed == ["wonder"]


async def test_one_who_gives_up_does_not_take_the_comparison_from_others(auth: Authenticator) -> None:
    first = asyncio.ensure_future(auth.verify("alice", "wonder"))
    second = asyncio.ensure_future(auth.verify("alice", "wonder"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None


async def test_guesses_cannot_pile_up(auth: Authenticator) -> None:
    waiting = MOST_WAITING
    found = await asyncio.gather(
        *(auth.verify("alice", f"guess {number}") for number in range(waiting + 3)), return_exceptions=True
    )
    assert [type(one) for one in found[waiting:]] == [AuthenticationBusy] * 3
    assert found[:waiting] == [None] * waiting
    assert await auth.verify("alice", "wonder") is not None, "afterwards there is room again"


class Slow:
    """Comparisons that wait until they are let go, one at a time, in the order in which they are begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self._go = threading.Semaphore(0)
        matches = PasswordHash.matches

        def slow(one: PasswordHash, text: str) -> bool:
            self.begun.append(text)
            self._go.acquire()
            return matches(one, text)

        monkeypatch.setattr(PasswordHash, "matches", slow)

    def let_go(self, number: int = 1) -> None:
        self._go.release(number)


def guesses(auth: Authenticator, number: int, source: str) -> list[asyncio.Task[Principal | None]]:
    return [asyncio.create_task(auth.verify("alice", f"{source} guess {one}", f"{source}")) for one in range(number)]


async def ended(tasks: list[asyncio.Task[Principal | None]], slow: Slow) -> None:
    slow.let_go(1000)
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("failed_before", [False, True])
async def test_who_guesses_from_one_address_keeps_nobody_out_from_another(
    auth: Authenticator, monkeypatch: pytest.MonkeyPatch, failed_before: bool
) -> None:
    if failed_before:
        assert await auth.verify("alice", "guess", "10.0.0.9") is None
    slow = Slow(monkeypatch)
    wrong = guesses(auth, 100, "10.0.0.9")
    await asyncio.sleep(0)
    right = [asyncio.create_task(auth.verify("alice", "wonder", "10.0.0.1"))]
    right.append(asyncio.create_task(auth.verify("bob", "builder", "10.0.0.2")))
    # Two are being compared already; these two are the next.
    slow.let_go(4)
    assert [str(one) for one in await asyncio.gather(*right)] == ["User:alice", "User:bob"]
    await ended(wrong, slow)
    assert {"wonder", "builder"} <= {*slow.begun[2:4]}


async def test_who_has_logged_in_before_comes_before_guesses_from_any_number_of_addresses(
    auth: Authenticator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert await auth.verify("alice", "wonder", "10.0.0.1") is not None
    put(tmp_path / "users.json", alice="changed", bob="builder")
    await auth.refresh()  # so it must be compared again
    slow = Slow(monkeypatch)
    wrong = [task for number in range(200) for task in guesses(auth, 1, f"10.1.0.{number}")]
    await asyncio.sleep(0)
    right = asyncio.create_task(auth.verify("alice", "changed", "10.0.0.1"))
    slow.let_go(3)
    assert await right is not None
    await ended(wrong, slow)
    assert slow.begun[2] == "changed"


async def test_addresses_of_one_network_of_ipv6_are_one(auth: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    wrong = [task for number in range(100) for task in guesses(auth, 1, f"2001:db8:0:1::{number:x}")]
    await asyncio.sleep(0)
    right = asyncio.create_task(auth.verify("alice", "wonder", "2001:db8:0:2::1"))
    slow.let_go(3)
    assert await right is not None
    await ended(wrong, slow)


async def test_addresses_take_turns(auth: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    first = guesses(auth, 10, "10.0.0.1")
    await asyncio.sleep(0)
    second = guesses(auth, 10, "10.0.0.2")
    await asyncio.sleep(0)
    await ended([*first, *second], slow)
    assert sum("10.0.0.2" in text for text in slow.begun[2:10]) >= 4


async def test_changes_of_the_file_count_from_the_next_look_on(auth: Authenticator, tmp_path: Path) -> None:
    assert await auth.verify("alice", "wonder") is not None
    put(tmp_path / "users.json", alice="changed")
    await auth.refresh()
    assert await auth.verify("alice", "wonder") is None, "it was right before"
    assert await auth.verify("alice", "changed") is not None
    assert await auth.verify("bob", "builder") is None
    (tmp_path / "users.json").unlink()
    await auth.refresh()
    assert await auth.verify("alice", "changed") is None


async def test_a_user_that_goes_while_its_password_is_compared_is_not_let_in(
    auth: Authenticator, tmp_path: Path
) -> None:
    verifying = asyncio.ensure_future(auth.verify("alice", "wonder"))
    await asyncio.sleep(0)
    auth._users = {}
    assert await verifying is None


async def test_a_file_that_was_damaged_changes_nothing(auth: Authenticator, tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("{")
    await auth.refresh()
    assert await auth.verify("alice", "wonder") is not None
    put_new = tmp_path / "new.json"
    put(put_new, alice="repaired")
    put_new.replace(tmp_path / "users.json")
    await auth.refresh()
    assert await auth.verify("alice", "repaired") is not None


def count_hashes(monkeypatch) -> list[str]:
    hashed: list[str] = []
    matches = PasswordHash.matches
    monkeypatch.setattr(PasswordHash, "matches", lambda self, text: hashed.append(text) or matches(self, text))
    return hashed
