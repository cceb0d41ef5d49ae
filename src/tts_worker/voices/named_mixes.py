"""Mixes by name, as clients of Kokoro's servers write them: ``af_sarah(2)+am_michael``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

MAX_PARTS = 8
_PART = re.compile(r"([^\W_][\w.-]{0,63})(?:\((\d{1,3}(?:\.\d{1,3})?)\))?")

Mix = tuple[tuple[str, float], ...]
"""Names of voices and their shares, which add up to 1."""


def mix_of(name: str) -> Mix | None:
    """Return the mix that a name describes; None if it describes none. A voice without a weight has the weight 1."""
    parts = name.split("+")
    if not 2 <= len(parts) <= MAX_PARTS:
        return None
    weights: dict[str, float] = {}
    for part in parts:
        if (match := _PART.fullmatch(part.strip())) is None:
            return None
        weights[match[1]] = weights.get(match[1], 0.0) + float(match[2] or 1)
    total = sum(weights.values())
    return tuple((voice, weight / total) for voice, weight in weights.items()) if total and len(weights) > 1 else None


def name_of(mix: Mix) -> str:
    """Return the name of a mix, with the shares in percent."""
    return "+".join(f"{voice}({round(100 * share, 2):g})" for voice, share in mix)


def is_mix(name: str, mixable: Iterable[Collection[str]]) -> bool:
    """Whether a name describes a mix of voices of one group of ``mixable``."""
    mix = mix_of(name)
    return mix is not None and any(all(voice in group for voice, _ in mix) for group in mixable)
