"""A cache of session lexicons, built once per content.

Validating 5,000 entries takes about 20 ms, so callers that can wait use ``prepare``, which builds on a thread.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import anyio.to_thread

from tts_worker.text.lexicon import Lexicon

_MAX_LEXICONS = 16


class LexiconCache:
    """The most recently used lexicons by the hash of their entries. Not thread-safe: use it from one event loop."""

    def __init__(self) -> None:
        self._lexicons: OrderedDict[bytes, Lexicon] = OrderedDict()

    def get(self, entries: Mapping[str, Any]) -> Lexicon:
        """Return the lexicon of ``entries``, building it if it is new. Raises InvalidRequest naming a bad entry."""
        return self._store(*self._build(entries))

    async def prepare(self, entries: Mapping[str, Any]) -> Lexicon:
        """Return the lexicon as ``get`` does, but build it on a thread, so that other sessions are not delayed."""
        return self._store(*await anyio.to_thread.run_sync(self._build, entries))

    async def prepare_from(self, read: Callable[[], Mapping[str, Any] | None]) -> None:
        """Call ``read`` and build its entries, if any, on a thread. A later ``get`` finds the lexicon."""

        def build() -> tuple[bytes, Lexicon] | None:
            entries = read()
            return self._build(entries) if entries else None

        built = await anyio.to_thread.run_sync(build)
        if built is not None:
            self._store(*built)

    def _build(self, entries: Mapping[str, Any]) -> tuple[bytes, Lexicon]:
        try:
            # Unsorted: if two keys differ only in case, the later one wins.
            key = hashlib.sha256(json.dumps(entries).encode()).digest()
        except (TypeError, ValueError, RecursionError):  # not JSON: the mapping of an embedding program
            return b"", Lexicon.from_mapping(entries)
        return key, self._lexicons.get(key) or Lexicon.from_mapping(entries)

    def _store(self, key: bytes, lexicon: Lexicon) -> Lexicon:
        if key:
            self._lexicons[key] = lexicon
            self._lexicons.move_to_end(key)
            if len(self._lexicons) > _MAX_LEXICONS:
                self._lexicons.popitem(last=False)
        return lexicon
