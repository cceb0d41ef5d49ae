"""The lexicon cache: one lexicon per content, built on a thread if the caller can wait."""

from __future__ import annotations

import threading

import pytest

from tts_worker.errors import InvalidRequest
from tts_worker.session.lexicons import LexiconCache
from tts_worker.text.lexicon import MAX_LEXICON_CHARS, Lexicon


async def test_equal_entries_share_one_lexicon() -> None:
    cache = LexiconCache()
    first = await cache.prepare({"nginx": "engine x"})
    assert cache.get({"nginx": "engine x"}) is first
    assert cache.get({"nginx": "engine ex"}) is not first


async def test_prepare_builds_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    build = Lexicon.from_mapping

    def recording(data: object) -> Lexicon:
        threads.append(threading.current_thread())
        return build(data)

    monkeypatch.setattr(Lexicon, "from_mapping", recording)
    await LexiconCache().prepare({"nginx": "engine x"})
    assert threads != [threading.main_thread()]


async def test_prepared_lexicon_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LexiconCache()
    await cache.prepare_from(lambda: None)
    await cache.prepare_from(lambda: {"nginx": "engine x"})
    monkeypatch.setattr(Lexicon, "from_mapping", None)
    assert len(cache.get({"nginx": "engine x"})) == 1


def test_least_recent_lexicon_is_evicted() -> None:
    cache = LexiconCache()
    first = cache.get({"a": "b"})
    for number in range(16):
        cache.get({"a": f"b{number}"})
    assert cache.get({"a": "b"}) is not first


@pytest.mark.parametrize("entries", [{"a": 5}, {"a": {1, 2}}, {"a": float("nan")}])
async def test_invalid_entry_is_named(entries: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=r"lexicon\['a'\]"):
        await LexiconCache().prepare(entries)


def test_lexicon_size_is_limited() -> None:
    entries = {f"word{number}": "x" * 200 for number in range(MAX_LEXICON_CHARS // 200)}
    with pytest.raises(InvalidRequest, match="at most 200000 characters"):
        LexiconCache().get(entries)
