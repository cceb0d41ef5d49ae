"""The lexicons of sessions: those in requests, built once per content, and those that the worker stores.

Validating 5,000 entries takes about 20 ms, so callers that can wait use ``prepare``, which builds on a thread. The
feature ``lexicons`` stores lexicons; other APIs reach it as ``LexiconCache.library``.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio.to_thread

from tts_worker.errors import InvalidRequest
from tts_worker.text.lexicon import Lexicon

_MAX_LEXICONS = 16

LexiconOption = Mapping[str, Any] | str
"""What a session takes: entries, or the names of stored lexicons."""


@dataclass(frozen=True, slots=True)
class LexiconContent:
    """What a version of a stored lexicon holds.

    Attributes:
        entries: Word -> spelling, /phonemes/ or ``{say, case_sensitive}``.
        title: A name for people.
        description: What it is for.
    """

    entries: Mapping[str, Any] = field(repr=False)
    title: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class StoredLexicon:
    """A version of a stored lexicon, without its entries.

    Attributes:
        name: Its name.
        version: From 1.
        entries: Number of its entries.
        owner: Name of the API key that created the lexicon; None without one.
        created_at_s: Unix time of this version.
        title: A name for people.
        description: What it is for.
        versions: All versions that are stored, oldest first.
    """

    name: str
    version: int
    entries: int
    owner: str | None
    created_at_s: float
    title: str
    description: str
    versions: tuple[int, ...]


class LexiconLibrary(Protocol):
    """Lexicons that a worker stores. A reference is ``NAME`` (the newest version) or ``NAME@VERSION``."""

    def find(self, references: str) -> Lexicon:
        """Return the lexicon of references that are separated by commas; an earlier one wins. Blocks.

        Raises:
            InvalidRequest: They are no references.
            UnknownLexicon: There is no such lexicon or version.
            OverCapacity: It cannot be read.
        """
        ...

    async def list(self) -> Sequence[StoredLexicon]:
        """Return the newest versions, ordered by name."""
        ...

    async def get(self, reference: str) -> tuple[StoredLexicon, Mapping[str, Any]]:
        """Return a version and its entries. Raises as ``find`` does."""
        ...

    async def create(self, name: str, content: LexiconContent) -> StoredLexicon:
        """Store a new lexicon.

        Raises:
            Forbidden: The API key may not store lexicons.
            InvalidRequest: The name or an entry is invalid.
            IllegalCommand: The name is taken, or there are too many lexicons.
            OverCapacity: It cannot be written.
        """
        ...

    async def update(self, name: str, content: LexiconContent) -> StoredLexicon:
        """Store a new version of a lexicon, unless the newest one is the same.

        Raises:
            UnknownLexicon: There is no such lexicon.
            Forbidden: Another API key created it.
            TTSWorkerError: As ``create``.
        """
        ...

    async def edit(self, name: str, change: Callable[[Mapping[str, Any]], LexiconContent]) -> StoredLexicon:
        """Store what ``change`` makes of the newest entries, as ``update`` does; a concurrent change is not lost.

        ``change`` may be called on any thread, and again if another worker stores a version meanwhile.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete all versions of a lexicon; sessions that use it keep it. Raises as ``update`` does."""
        ...

    def read_file(self, data: bytes) -> Mapping[str, Any]:
        """Return the entries in a PLS or JSON file. Blocks. Raises InvalidRequest."""
        ...

    def unused_name(self, title: str) -> str:
        """Return a name that is made of ``title`` and that no lexicon has. Blocks."""
        ...


class LexiconCache:
    """The most recently used lexicons by the hash of their entries. Not thread-safe: use it from one event loop.

    Attributes:
        library: Finds stored lexicons; None if the worker stores none.
    """

    def __init__(self) -> None:
        self.library: LexiconLibrary | None = None
        self._lexicons: OrderedDict[bytes, Lexicon] = OrderedDict()

    @property
    def stored(self) -> LexiconLibrary:
        """The stored lexicons. Raises InvalidRequest if the worker stores none."""
        if self.library is None:
            raise InvalidRequest("this worker stores no lexicons: its setting lexicons.directory is not set")
        return self.library

    def get(self, lexicon: LexiconOption) -> Lexicon:
        """Return the lexicon of an option, building it if it is new.

        Raises:
            InvalidRequest: Names a bad entry, or the worker stores no lexicons.
            UnknownLexicon: There is no stored lexicon of that name.
        """
        return self._store(*self._build(lexicon))

    async def prepare(self, lexicon: LexiconOption) -> Lexicon:
        """Return the lexicon as ``get`` does, but build it on a thread, so that other sessions are not delayed."""
        return self._store(*await anyio.to_thread.run_sync(self._build, lexicon))

    async def prepare_from(self, read: Callable[[], LexiconOption | None]) -> None:
        """Call ``read`` and build its lexicon, if any, on a thread. A later ``get`` finds it."""

        def build() -> tuple[bytes, Lexicon] | None:
            lexicon = read()
            return self._build(lexicon) if lexicon else None

        built = await anyio.to_thread.run_sync(build)
        if built is not None:
            self._store(*built)

    def _build(self, lexicon: LexiconOption) -> tuple[bytes, Lexicon]:
        if isinstance(lexicon, str):
            return b"", self.stored.find(lexicon)  # it has its own cache
        try:
            # Unsorted: if two keys differ only in case, the later one wins.
            key = hashlib.sha256(json.dumps(lexicon).encode()).digest()
        except (TypeError, ValueError, RecursionError):  # not JSON: the mapping of an embedding program
            return b"", Lexicon.from_mapping(lexicon)
        return key, self._lexicons.get(key) or Lexicon.from_mapping(lexicon)

    def _store(self, key: bytes, lexicon: Lexicon) -> Lexicon:
        if key:
            self._lexicons[key] = lexicon
            self._lexicons.move_to_end(key)
            if len(self._lexicons) > _MAX_LEXICONS:
                self._lexicons.popitem(last=False)
        return lexicon
