"""Schemas of a Confluent-compatible registry, asked for by id and kept.

An id means one schema for ever. So schemas are kept as long as there is room. What the registry does not know is asked
for again after a pause, and one that does not answer is left alone for as long, whatever the id. One request is in
flight at a time.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

import msgspec
from msgspec import Struct

from anabranch_kit.memory.budget import Kind
from anabranch_kit.net.http_get import get
from bridges.console.schemas.jobs import Definition

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget

PAUSE_S = 10.0
"""Seconds until a registry is asked again for what it did not give."""
PATIENCE_S = 5.0
MOST = 1000
_MOST_BYTES = 8 * 1024**2
"""Schemas that are kept, and their text."""
_MOST_REFERENCES = 100
_MOST_TEXT = 1024**2
"""Schemas that one refers to, directly or not, and the text of all of them."""
_NOT_THERE = (400, 404, 406, 422)
"""Statuses that concern what was asked for; others, as 401 and 503, the registry."""
Key = int | UUID | str
"""A schema's id, its GUID, or a subject, which stands for its latest schema."""


class SchemaError(Exception):
    """A schema is not to be had; the message says why."""


class Schema(Struct, eq=False):
    """A schema. ``number``: its name in this process; ``id``: its id, if it is known by one."""

    number: int
    id: int | None
    definition: Definition

    @property
    def size(self) -> int:
        """Return the bytes of its text."""
        return 500 + len(self.definition.text) + sum(map(len, self.definition.references.values()))


class _Reference(Struct):
    name: str
    subject: str
    version: int


class _Answer(Struct, rename="camel"):
    schema: str
    id: int | None = None
    schema_type: str | None = None
    references: list[_Reference] | None = None


class _Kept(Struct):
    """The answer to a question: a schema, or the reason why there is none; ``until`` when it holds."""

    found: Schema | str
    until: float

    @property
    def size(self) -> int:
        return self.found.size if isinstance(self.found, Schema) else 500


class Registry:
    """A registry. Belongs to the event loop.

    ``url`` has the login there: a user's name and password, or a token for a password of nobody. ``ca``: file with the
    authorities of TLS. ``clock`` returns monotonic seconds.
    """

    def __init__(self, url: str, ca: str, budget: MemoryBudget, clock: Callable[[], float] = time.monotonic) -> None:
        parts = urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        self._url = parts._replace(netloc=host).geturl().rstrip("/")
        self._ca = ca
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        user, password = (unquote(one) for one in login.partition(":")[::2])
        if user:
            told = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {told}"
        elif password:
            self._headers["Authorization"] = f"Bearer {password}"
        self._clock = clock
        self._account = budget.account(lambda: None)
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._size = 0
        self._numbers = count()
        self._asking = asyncio.Lock()
        self._silent: tuple[float, str] = (0.0, "")

    def find_kept(self, key: Key) -> Schema | str | None:
        """Return the schema, or the reason why there is none; None if the registry has to be asked."""
        kept = self._kept.get(key)
        if kept is None or kept.until < self._clock():
            until, reason = self._silent
            return reason if self._clock() < until else None
        self._kept.move_to_end(key)
        return kept.found

    async def find(self, key: Key) -> Schema:
        """Return a schema, asking for it if it is not kept. Raises SchemaError."""
        found = self.find_kept(key)
        if found is None:
            async with self._asking:
                found = self.find_kept(key)  # somebody else may have asked meanwhile
                if found is None:
                    found = await self._ask(key)
        if isinstance(found, str):
            raise SchemaError(found)
        return found

    async def _ask(self, key: Key) -> Schema | str:
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                if isinstance(key, str):
                    answer = await self._get(f"/subjects/{quote(key, safe='')}/versions/latest")
                elif isinstance(key, UUID):
                    answer = await self._get(f"/schemas/guids/{key}")
                else:
                    answer = await self._get(f"/schemas/ids/{key}")
                    answer.id = key
                references = await self._follow(answer)
        except SchemaError as error:
            self._keep(key, _Kept(str(error), self._clock() + PAUSE_S))
            return str(error)
        except (OSError, ValueError, TimeoutError) as error:
            reason = f"the schema registry {self._url} fails: {error or 'it is too slow'}"
            self._silent = self._clock() + PAUSE_S, reason
            return reason
        definition = Definition(answer.schema_type or "AVRO", answer.schema, references)
        schema = Schema(next(self._numbers), answer.id, definition)
        self._keep(key, _Kept(schema, self._clock() + PAUSE_S if isinstance(key, str) else float("inf")))
        return schema

    async def _follow(self, answer: _Answer) -> dict[str, str]:
        """Return the schemas that one refers to, directly or not, by name, each behind those that it refers to."""
        found: dict[str, str] = {}
        began: set[str] = set()

        async def follow(references: list[_Reference]) -> None:
            for one in references:
                if one.name in began:
                    continue
                began.add(one.name)
                if len(began) > _MOST_REFERENCES:
                    raise SchemaError(f"the schema refers to more than {_MOST_REFERENCES} others")
                other = await self._get(f"/subjects/{quote(one.subject, safe='')}/versions/{one.version}")
                await follow(other.references or [])
                found[one.name] = other.schema
                if sum(map(len, found.values())) > _MOST_TEXT:
                    raise SchemaError(f"the schema refers to more than {_MOST_TEXT} bytes of others")

        await follow(answer.references or [])
        return found

    async def _get(self, path: str) -> _Answer:
        """Ask for a schema. Raises SchemaError if the registry has none, ValueError and OSError if it fails."""
        tls = None
        if self._ca:
            try:
                tls = await asyncio.to_thread(ssl.create_default_context, cafile=self._ca)
            except OSError as error:
                raise ValueError(f"schemas.ca = {self._ca}: {error}") from None
        status, body = await get(self._url + path, PATIENCE_S, self._headers, tls)
        if status in _NOT_THERE:
            raise SchemaError(f"the schema registry has no {path}")
        if status != 200:
            raise ValueError(f"{path} has status {status}")
        try:
            return msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SchemaError(f"the schema registry's answer about {path} is none: {error}") from None

    def _keep(self, key: Key, kept: _Kept) -> None:
        before = self._size
        if (old := self._kept.pop(key, None)) is not None:
            self._size -= old.size
        self._kept[key] = kept
        self._size += kept.size
        while len(self._kept) > MOST or (self._size > _MOST_BYTES and len(self._kept) > 1):
            self._size -= self._kept.popitem(last=False)[1].size
        self._account.count(Kind.REQUESTS, self._size - before)
