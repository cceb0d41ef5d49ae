"""Moods by prosody alone: what a style changes of rate, level, pitch, the range of the pitch, and brightness.

The directions of the changes are those that studies of acted and natural speech agree on: anger and joy are faster,
louder and brighter, with a higher pitch that moves more; sadness and tenderness are the opposite. The amounts are our
own, and smaller: an agent is no actor, and a pitch far from that of the training audio is less natural.

Murray and Arnott, Toward the simulation of emotion in synthetic speech, JASA 93 (1993), table 1.
Scherer, Vocal communication of emotion, Speech Communication 40 (2003), table 2.
Juslin and Laukka, Communication of emotions in vocal expression, Psychological Bulletin 129 (2003), table 11.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tts_worker.types import Expression


class Mood(NamedTuple):
    """What a mood changes.

    Attributes:
        rate: Factor of the speaking rate.
        volume_db: Change of the level.
        pitch_semitones: Change of the mean pitch.
        pitch_range: Factor of the distance of the pitch from its median, in semitones.
        tilt_db: Change of the spectrum above 1 kHz for each octave.
        names: Words for it.
    """

    rate: float = 1.0
    volume_db: float = 0.0
    pitch_semitones: float = 0.0
    pitch_range: float = 1.0
    tilt_db: float = 0.0
    names: str = ""


MOODS = {
    "happy": Mood(1.0, 1.0, 1.0, 1.2, 0.7, "happy happily cheerful cheerfully joyful joyfully glad delighted upbeat"),
    "excited": Mood(1.15, 2.0, 1.3, 1.3, 1.0, "excited excitedly enthusiastic enthusiastically thrilled elated"),
    "angry": Mood(1.1, 3.0, 0.5, 1.2, 1.5, "angry angrily furious mad annoyed irritated frustrated"),
    "sad": Mood(0.82, -3.0, -0.8, 0.75, -1.2, "sad sadly sorrowful melancholic gloomy dejected disappointed regretful"),
    "calm": Mood(0.9, -1.5, -0.3, 0.85, -0.7, "calm calmly peaceful relaxed serene soothing tender reassuring"),
    "serious": Mood(0.92, 0.0, -0.7, 0.85, 0.0, "serious seriously stern firm determined professional"),
}
"""By the name that clients see."""

_NEUTRAL = Mood()
_BY_WORD = {word: mood for mood in MOODS.values() for word in mood.names.split()}


def mood_of(style: str) -> Mood:
    """Return the mood of a style, such as ``happy`` or ``say it cheerfully``; without a known word no change."""
    return next((_BY_WORD[word] for word in re.findall("[a-z]+", style.lower()) if word in _BY_WORD), _NEUTRAL)


def with_mood(expression: Expression) -> Expression:
    """Return ``expression`` with the rate, level and pitch of its mood."""
    mood = mood_of(expression.style)
    return expression.within(Expression(mood.rate, mood.volume_db, mood.pitch_semitones))
