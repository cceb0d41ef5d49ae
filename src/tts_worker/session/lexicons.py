"""Lexicons that sessions bring along: built once for each content, away from the event loop where there is time for it.

Owns the cache of the latest lexicons. Checking 5,000 entries takes some 20 ms, so callers that can wait use
``prepare``; ``get`` is for those that cannot.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import anyio.to_thread

from tts_worker.text.lexicon import Lexicon

_MOST_LEXICONS = 16


class LexiconCache:
    """The latest lexicons by the hash of their entries. For one event loop."""

    def __init__(self) -> None:
        self._lexicons: OrderedDict[bytes, Lexicon] = OrderedDict()

    def get(self, entries: Mapping[str, Any]) -> Lexicon:
        """The lexicon of ``entries``, built here and now if it is new. Raises InvalidRequest that names a bad entry."""
        return self._keep(*self._build(entries))

    async def prepare(self, entries: Mapping[str, Any]) -> Lexicon:
        """The same on a thread, so that other sessions do not wait for it."""
        return self._keep(*await anyio.to_thread.run_sync(self._build, entries))

    async def prepare_from(self, read: Callable[[], Mapping[str, Any] | None]) -> None:
        """Build what ``read`` returns, if anything; both on a thread. A later ``get`` finds it."""

        def build() -> tuple[bytes, Lexicon] | None:
            entries = read()
            return self._build(entries) if entries else None

        built = await anyio.to_thread.run_sync(build)
        if built is not None:
            self._keep(*built)

    def _build(self, entries: Mapping[str, Any]) -> tuple[bytes, Lexicon]:
        try:
            # Not sorted: where two keys differ in their case only, the later one wins.
            key = hashlib.sha256(json.dumps(entries).encode()).digest()
        except (TypeError, ValueError, RecursionError):  # no JSON: a program's own mapping
            return b"", Lexicon.from_mapping(entries)
        return key, self._lexicons.get(key) or Lexicon.from_mapping(entries)

    def _keep(self, key: bytes, lexicon: Lexicon) -> Lexicon:
        if key:
            self._lexicons[key] = lexicon
            self._lexicons.move_to_end(key)
            if len(self._lexicons) > _MOST_LEXICONS:
                self._lexicons.popitem(last=False)
        return lexicon
