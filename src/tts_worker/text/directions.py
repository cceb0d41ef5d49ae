"""Stage directions in a text: ``[laughs]``, ``[pause 500ms]``, ``<<warm>>``.

The words are those that vendors and frameworks publish for their models: audio tags of ElevenLabs, Inworld, Cartesia,
Fish Audio and xAI, the markers of LiveKit's expressive mode, and the Real-time Context Standard of Pipecat
(``data/directions.tsv``). A vocalization is named by the control tag of an engine that performs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tts_worker.text.markup import MAX_BREAK_MS
from tts_worker.text.tables import PATTERNS, words

_LISTS = words("directions")
_DELIVERIES, _OTHER_WORDS = _LISTS["delivery"], _LISTS["other"]
_VOCALIZATIONS = {word: tag for tag, found in _LISTS.items() if tag[0] == "[" for word in found}
_ACTIONS = frozenset(word for word in {*_VOCALIZATIONS, *_DELIVERIES, "clears"} if re.search("(?<!ou)(?<!p)s$", word))
_WORDS = re.compile(r"[a-z]+")
_PAUSES_MS = {"short": 250, "brief": 250, "long": 1500}
_DEFAULT_PAUSE_MS = 500


def direction(content: str) -> str | None:
    """Return the control tag of what a direction asks for, "" if no tag performs it; None for other words."""
    if not PATTERNS["DIRECTION"].fullmatch(content):
        return None
    plain = content.lower()
    found = _WORDS.findall(plain)
    if PATTERNS["ACCENT"].fullmatch(plain):
        return ""
    if not all(word in _VOCALIZATIONS or word in _DELIVERIES or word in _OTHER_WORDS for word in found):
        return None
    tag = next((_VOCALIZATIONS[word] for word in found if word in _VOCALIZATIONS), "")
    return tag if tag or not _DELIVERIES.isdisjoint(found) else None


def words_of(name: str, values: Mapping[str, str]) -> str | None:
    """Return the direction of an opening tag, which may be none that is known; None if the tag is no direction."""
    if name in ("expr", "sound"):
        kind, label = values.get("type", name), values.get("label", values.get("value", ""))
        return f"pause {label}" if kind == "break" else label if kind == "sound" else ""
    if name in ("emotion", "expression", "speed", "volume"):
        return ""
    return None if direction(name) is None else name


def is_action(content: str) -> bool:
    """Return whether ``*content*`` is what a person does: "laughs", "clears throat"."""
    return content.split()[0].lower() in _ACTIONS and direction(content) is not None


def may_be_action(content: str) -> bool:
    """Return whether ``content`` may be the beginning of an action."""
    first, *rest = content.lower().split(" ")
    return first in _ACTIONS if rest else any(word.startswith(first) for word in _ACTIONS)


def pause_ms(content: str) -> int | None:
    """Return the length of a pause; None if ``content`` asks for none. A number without a unit from 20 on is in ms."""
    found = PATTERNS["PAUSE"].fullmatch(content)
    if found is None:
        return None
    kind, number, unit = found.groups()
    if number is None:
        return _PAUSES_MS.get((kind or "").lower(), _DEFAULT_PAUSE_MS)
    in_ms = unit.lower() == "ms" if unit else float(number) >= 20
    return min(MAX_BREAK_MS, round(float(number) * (1 if in_ms else 1000)))
