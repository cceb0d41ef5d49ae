"""What the plug-ins of agent frameworks share: the worker's address and checks of their options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict, get_args

from tts_worker.client import Client, ClientSettings, connect
from tts_worker.errors import InvalidRequest
from tts_worker.protocol.messages import check_options
from tts_worker.types import SAMPLE_RATES_HZ, SessionOptions, UrlMode

DEFAULT_URL = "ws://127.0.0.1:8080"

Urls = Literal["drop", "host", "keep"]
"""How a bare URL is read, see ``types.UrlMode``."""


class PluginOptions(TypedDict, total=False):
    """Options of a plug-in, in the words of agent frameworks.

    Attributes:
        voice: Voice name; None takes the worker's default.
        model: The worker's engine, such as ``hibari``; None takes the voice's.
        language: BCP 47 tag; None detects it.
        speed: 2.0 is twice as fast.
        instruct: Style instruction, for voices that support it.
        seed: Seed of the sampling.
        lexicon: Word -> other spelling, or ``/phonemes/``; or the names of stored lexicons.
        markdown: Keep Markdown, emoji and URLs from being read aloud; None takes the worker's default (True).
        urls: How a bare URL is read: ``drop``, ``host`` ("example.com") or ``keep``; None takes the worker's default.
        normalize: Write numbers, dates and units out in words before synthesis; None takes the worker's default.
        flush_after_ms: Text without punctuation is synthesized when the language model sends nothing for this long
            (None: the worker's default; 0: never).
        max_ahead_s: Maximum playout lead of the worker (2.0 by default); audio beyond it is never generated.
    """

    voice: str | None
    model: str | None
    language: str | None
    speed: float
    instruct: str | None
    seed: int
    lexicon: Mapping[str, str] | str | None
    markdown: bool | None
    urls: Urls | None
    normalize: bool | None
    flush_after_ms: float | None
    max_ahead_s: float


def connect_agent(url: str | None, api_key: str | None, settings: ClientSettings) -> Client:
    """Create a client for an agent.

    Args:
        url: Defaults to TTS_WORKER_URL, else ``DEFAULT_URL``.
        api_key: Defaults to TTS_WORKER_API_KEY.
        settings: Settings of the client, without its key.

    Raises:
        InvalidRequest: The URL is invalid.
    """
    key = api_key or os.environ.get("TTS_WORKER_API_KEY")
    return connect(url or os.environ.get("TTS_WORKER_URL", DEFAULT_URL), replace(settings, api_key=key))


def with_plugin_options(options: SessionOptions, given: Mapping[str, Any]) -> SessionOptions:
    """Return ``options`` with those of a plug-in, which has its own names for some.

    Raises:
        InvalidRequest: Names an option that no worker takes, never its value.
        TypeError: There is no such option.
    """
    if unknown := given.keys() - PluginOptions.__annotations__.keys() - {"realtime"}:
        known = ", ".join(PluginOptions.__annotations__)
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; known: {known}")
    changes = dict(given)
    if "max_ahead_s" in changes:
        changes["lead_ms"] = _lead_ms_of(changes.pop("max_ahead_s"))
    if "normalize" in changes:
        changes["normalize"] = _check_normalize(changes.pop("normalize"))
    if "urls" in changes:
        changes["urls"] = _url_mode_of(changes["urls"])
    if "lexicon" in changes:
        changes["lexicon"] = _check_lexicon(changes["lexicon"])
    changed = replace(options, **changes)
    check_options(changed)
    return changed


def _lead_ms_of(max_ahead_s: float) -> float:
    """Convert a maximum playout lead. Raises InvalidRequest."""
    if not isinstance(max_ahead_s, int | float) or not 0 < max_ahead_s <= 10:
        raise InvalidRequest("max_ahead_s must be above 0 and at most 10")
    return 1_000 * max_ahead_s


def _url_mode_of(urls: Urls | None) -> UrlMode | None:
    """Convert an option ``urls``. Raises InvalidRequest."""
    if urls is None:
        return None
    if urls not in get_args(Urls):
        raise InvalidRequest(f"urls must be one of {', '.join(get_args(Urls))}")
    return UrlMode(urls)


def _check_normalize(normalize: bool | None) -> bool | None:
    """Return the option. Raises InvalidRequest."""
    if normalize is not None and not isinstance(normalize, bool):
        raise InvalidRequest("normalize must be true or false")
    return normalize


def check_sample_rate(sample_rate: int) -> int:
    """Return a sample rate that a worker can send. Raises InvalidRequest."""
    if sample_rate not in SAMPLE_RATES_HZ:
        raise InvalidRequest(f"sample_rate must be one of {', '.join(map(str, SAMPLE_RATES_HZ))}")
    return sample_rate


def _check_lexicon(lexicon: Mapping[str, str] | str | None) -> Mapping[str, str] | str | None:
    """Return a lexicon of words and their spellings or /phonemes/, or the names of some. Raises InvalidRequest."""
    if lexicon is None or isinstance(lexicon, str):
        return lexicon
    if not isinstance(lexicon, Mapping) or not all(isinstance(part, str) for pair in lexicon.items() for part in pair):
        raise InvalidRequest("lexicon must map words to spellings or /phonemes/, or name stored lexicons")
    return dict(lexicon)
