"""The stored lexicons of a worker: who may change them, how many there may be, and which are in memory."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tts_worker.callers import ApiScope, Caller, current_caller
from tts_worker.errors import BundleError, Forbidden, IllegalCommand, InvalidRequest, OverCapacity, UnknownLexicon
from tts_worker.features.lexicons.pls import read_pls
from tts_worker.features.lexicons.store import LexiconDetails, LexiconStore, OutdatedVersion
from tts_worker.server.audit import audited
from tts_worker.session.lexicons import LexiconContent, StoredLexicon
from tts_worker.text.lexicon import Lexicon

log = logging.getLogger(__name__)

MAX_STORED = 1_000
"""Lexicons of a directory, those of all API keys together."""
MAX_OF_KEY = 100
"""Lexicons of one API key."""
MAX_REFERENCES = 3
MAX_TITLE_CHARS = 100
MAX_DESCRIPTION_CHARS = 1_000
_MAX_CACHED = 64
_ATTEMPTS = 16
_REFERENCE = re.compile(r"(\w[\w.-]{0,63})(?:@([1-9]\d{0,8}))?")
_RETRY_AFTER_S = 5.0

Reference = tuple[str, int | None]
"""A lexicon and a version; None for the newest."""


def parse_references(references: str) -> list[Reference]:
    """Parse ``NAME`` or ``NAME@VERSION``, several separated by commas. Raises InvalidRequest."""
    parts = [_REFERENCE.fullmatch(part.strip()) for part in references.split(",", MAX_REFERENCES + 1)]
    matches = [part for part in parts if part is not None]
    if len(matches) < len(parts):
        raise InvalidRequest("lexicon: a stored lexicon is NAME or NAME@VERSION, several are separated by commas")
    if len(matches) > MAX_REFERENCES:
        raise InvalidRequest(f"lexicon: a session may use at most {MAX_REFERENCES} stored lexicons")
    return [(match[1], int(match[2]) if match[2] else None) for match in matches]


def parse_reference(reference: str) -> Reference:
    """Parse one reference. Raises InvalidRequest."""
    (parsed,) = parse_references(reference.replace(",", "/"))
    return parsed


class StoredLexicons:
    """The lexicons in a directory that several workers may share: each sees at once what another has changed.

    ``find``, ``read_file`` and ``unused_name`` may be called on any thread.

    Args:
        directory: The directory; it is created with the first lexicon.
    """

    def __init__(self, directory: Path) -> None:
        self._store = LexiconStore(directory)
        self._lock = asyncio.Lock()  # of changes
        self._cache_lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, int], tuple[tuple[int, int], Lexicon]] = OrderedDict()
        with _hidden_paths():
            self._store.remove_remnants(_now_s())

    # -- using --------------------------------------------------------------------------------------------------------

    def find(self, references: str) -> Lexicon:
        """Return the lexicon of references that are separated by commas; an earlier one wins.

        Raises:
            InvalidRequest: They are no references, or too many.
            UnknownLexicon: There is no such lexicon or version.
            OverCapacity: It cannot be read.
        """
        with _hidden_paths():
            found = [self._read(name, self._version(name, version)) for name, version in parse_references(references)]
        return Lexicon.merged(*reversed(found))

    def _version(self, name: str, version: int | None) -> int:
        versions = self._store.versions(name)
        if version is not None and version not in versions:
            kept = ", ".join(map(str, versions[-5:]))
            raise UnknownLexicon(f'there is no version {version} of the lexicon "{name}"; the newest are: {kept}')
        return versions[-1] if version is None else version

    def _read(self, name: str, version: int) -> Lexicon:
        stamp = self._store.stamp(name, version)
        with self._cache_lock:
            known = self._cache.get((name, version))
            if known is not None and known[0] == stamp:
                self._cache.move_to_end((name, version))
                return known[1]
        lexicon = Lexicon.from_mapping(self._store.entries(name, version), name=f"lexicon {name}")
        with self._cache_lock:
            self._cache[name, version] = (stamp, lexicon)
            self._cache.move_to_end((name, version))
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return lexicon

    # -- reading ------------------------------------------------------------------------------------------------------

    async def list(self) -> Sequence[StoredLexicon]:
        """Return the newest versions, ordered by name; damaged ones are logged and left out.

        Raises:
            OverCapacity: The directory cannot be read.
        """
        with _hidden_paths():
            return await asyncio.to_thread(self._list)

    def _list(self) -> Sequence[StoredLexicon]:
        found = []
        for name in self._store.names():
            try:
                found.append(self._describe(name, None))
            except UnknownLexicon:  # deleted meanwhile
                continue
            except BundleError as error:
                log.warning("%s", error.message)
        return found

    def _describe(self, name: str, version: int | None) -> StoredLexicon:
        number = self._version(name, version)
        details = self._store.details(name, number)
        return StoredLexicon(
            name=name,
            version=number,
            entries=details.count,
            owner=details.owner,
            created_at_s=details.created_at_s,
            title=details.title or name,
            description=details.description,
            versions=self._store.versions(name),
        )

    async def get(self, reference: str) -> tuple[StoredLexicon, Mapping[str, Any]]:
        """Return a version and its entries. Raises as ``find`` does."""
        name, version = parse_reference(reference)

        def read() -> tuple[StoredLexicon, Mapping[str, Any]]:
            stored = self._describe(name, version)
            return stored, self._store.entries(name, stored.version)

        with _hidden_paths():
            return await asyncio.to_thread(read)

    # -- changing -----------------------------------------------------------------------------------------------------

    async def create(self, name: str, content: LexiconContent) -> StoredLexicon:
        """Store a new lexicon, which belongs to the caller's API key.

        Raises:
            Forbidden: The API key may not store lexicons.
            InvalidRequest: The name, a text or an entry is invalid.
            IllegalCommand: The name is taken, or there are too many lexicons.
            OverCapacity: It cannot be written.
        """
        with audited("add_lexicon", name, ApiScope.ENROLL), _hidden_paths():
            caller = current_caller()
            entries = await asyncio.to_thread(_checked, content)
            async with self._lock:
                await asyncio.to_thread(self._check_number, caller)
                details = _details(content, entries, caller.key)
                await asyncio.to_thread(self._store.create, name, details, entries)
            return await asyncio.to_thread(self._describe, name, None)

    async def update(self, name: str, content: LexiconContent) -> StoredLexicon:
        """Store a new version of a lexicon, unless the newest one is the same. An empty text leaves it as it is.

        Raises:
            UnknownLexicon: There is no such lexicon.
            Forbidden: The API key may not store lexicons, or another one created this one.
            InvalidRequest: A text or an entry is invalid.
            OverCapacity: It cannot be written.
        """
        return await self.edit(name, lambda known: content)

    async def edit(self, name: str, change: Callable[[Mapping[str, Any]], LexiconContent]) -> StoredLexicon:
        """Store what ``change`` makes of the newest entries, as ``update`` does; a concurrent change is not lost.

        ``change`` may be called on any thread, and again if another worker stores a version meanwhile.
        """
        with audited("update_lexicon", name, ApiScope.ENROLL), _hidden_paths():
            async with self._lock:
                await asyncio.to_thread(self._add_version, name, change, current_caller())
            return await asyncio.to_thread(self._describe, name, None)

    def _add_version(self, name: str, change: Callable[[Mapping[str, Any]], LexiconContent], caller: Caller) -> None:
        for _ in range(_ATTEMPTS):
            newest = self._version(name, None)
            known = self._store.details(name, newest)
            _check_owner(name, known, caller)
            known_entries = self._store.entries(name, newest)
            content = change(known_entries)
            entries = _checked(content)
            details = _details(content, entries, known.owner, known)
            is_same = (details.title, details.description) == (known.title, known.description)
            if is_same and [*entries.items()] == [*known_entries.items()]:
                return
            with suppress(OutdatedVersion):
                self._store.add_version(name, details, entries, after=newest)
                return
        raise BundleError(f"{name}: too many processes store versions at once")

    async def delete(self, name: str) -> None:
        """Delete all versions of a lexicon. Sessions that use it keep it.

        Raises:
            UnknownLexicon: There is no such lexicon.
            Forbidden: The API key may not delete lexicons, or another one created this one.
            OverCapacity: The directory cannot be changed.
        """

        def delete(caller: Caller) -> None:
            _check_owner(name, self._store.details(name, self._version(name, None)), caller)
            self._store.delete(name)

        with audited("delete_lexicon", name, ApiScope.ENROLL), _hidden_paths():
            async with self._lock:
                await asyncio.to_thread(delete, current_caller())

    def _check_number(self, caller: Caller) -> None:
        """Raise IllegalCommand if there are too many lexicons for one more."""
        if len(self._store.names()) >= MAX_STORED:
            raise IllegalCommand(f"all {MAX_STORED} lexicons of this worker are taken: delete one first")
        if caller.key is not None and sum(each.owner == caller.key for each in self._list()) >= MAX_OF_KEY:
            raise IllegalCommand(f'the API key "{caller.key}" has all of its {MAX_OF_KEY} lexicons: delete one first')

    # -- helpers of APIs ----------------------------------------------------------------------------------------------

    def read_file(self, data: bytes) -> Mapping[str, Any]:
        """Return the entries in a PLS or JSON file. Raises InvalidRequest."""
        if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            return read_pls(data)
        try:
            entries = json.loads(data)
        except (ValueError, RecursionError):
            raise InvalidRequest("the file is neither PLS nor valid JSON") from None
        assert isinstance(entries, dict)  # it begins with a brace
        return entries

    def unused_name(self, title: str) -> str:
        """Return a name that is made of ``title`` and that no lexicon has."""
        base = re.sub(r"[^\w.-]+", "-", title).strip("-._")[:48] or "lexicon"
        with _hidden_paths():
            taken = {*self._store.names()}
        while (name := f"{base}-{secrets.token_hex(3)}") in taken:
            pass
        return name


def _checked(content: LexiconContent) -> dict[str, Any]:
    """Return the entries without needless spaces. Raises InvalidRequest."""
    for name, text, most in (
        ("title", content.title, MAX_TITLE_CHARS),
        ("description", content.description, MAX_DESCRIPTION_CHARS),
    ):
        if len(text) > most:
            raise InvalidRequest(f"{name} may have at most {most} characters")
    Lexicon.from_mapping(content.entries, name="entries")
    entries: dict[str, Any] = {}
    for key, value in content.entries.items():
        grapheme = " ".join(key.split())
        entries.pop(grapheme, None)  # the order counts: a later entry wins
        entries[grapheme] = _tidy(value)
    return entries


def _tidy(value: str | Mapping[str, Any]) -> str | dict[str, Any]:
    if isinstance(value, str):
        return " ".join(value.split())
    return {**value, "say": " ".join(value["say"].split())}


def _details(
    content: LexiconContent, entries: Mapping[str, Any], owner: str | None, known: LexiconDetails | None = None
) -> LexiconDetails:
    title = content.title or (known.title if known is not None else "")
    description = content.description or (known.description if known is not None else "")
    return LexiconDetails(len(entries), owner, _now_s(), title, description)


def _check_owner(name: str, details: LexiconDetails, caller: Caller) -> None:
    """Raise Forbidden unless the caller's key created the lexicon or may administer the worker."""
    if caller.key is not None and details.owner != caller.key and ApiScope.ADMIN not in caller.scopes:
        raise Forbidden(f'the API key "{caller.key}" did not create the lexicon "{name}"')


def _now_s() -> float:
    return datetime.now(timezone.utc).timestamp()


@contextmanager
def _hidden_paths() -> Iterator[None]:
    """Log an error of the directory, and raise one without its path instead."""
    try:
        yield
    except BundleError as error:
        log.error("%s", error.message)
        raise OverCapacity(
            "the worker cannot read or write its lexicons; its log says why", retry_after_s=_RETRY_AFTER_S
        ) from None
