"""Measures an utterance that changes its rate, level and pitch, and draws it: ``python -m tools.expression``.

Each sentence is compared with the same one spoken as the voice has it.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tts_worker.audio.loudness import integrated_lufs
from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import SAMPLE_RATE_HZ, Audio, EndText, Open, SynthesisParams, Text, UtteranceKey, WordTiming

SPANS = (
    ("We have found your order.", ""),
    ("I am so sorry, it was lost on the way.", "<prosody rate='75%' volume='-6dB' pitch='-2st'>"),
    ("But there is good news, a new one comes tomorrow!", "<prosody rate='125%' volume='+4dB' pitch='+3st'>"),
)
"""Sentences, and what changes each."""

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "expression.svg"
_WIDTH, _HEIGHT, _MIDDLE, _AMPLITUDE = 840, 250, 90, 60
_MIN_HZ, _MAX_HZ = 100, 400
_WINDOW, _STEP = 960, 480


class Span(NamedTuple):
    """What is measured of a sentence.

    Attributes:
        seconds: Its length, from the first word to the end of the last one.
        lufs: Its loudness.
        pitch_hz: Median of its pitch.
        start_sample: Where it begins.
    """

    seconds: float
    lufs: float
    pitch_hz: float
    start_sample: int


def utterance(*, plain: bool = False) -> str:
    """Return the text of ``SPANS``, with or without its markup."""
    return " ".join(text if plain or not tag else f"{tag}{text}</prosody>" for text, tag in SPANS)


def speak(model: HibariModel, text: str) -> tuple[Floats, list[WordTiming]]:
    """Return the samples of a text and its words."""
    key = UtteranceKey("expression", 1)
    engine = HibariEngine(model)
    engine.handle(Open(key, SynthesisParams(VOICE), credit_samples=60 * SAMPLE_RATE_HZ))
    pipeline = TextPipeline()
    for segment in [*pipeline.feed(text), *pipeline.end()]:
        engine.handle(Text(key, segment))
    engine.handle(EndText(key))
    events = []
    while key in engine.sequences:
        events += [event for event in engine.step(0.0) if isinstance(event, Audio)]
    pcm = b"".join(event.pcm for event in events)
    samples: Floats = np.frombuffer(pcm, "<i2").astype(np.float32)
    return samples / np.float32(32768), [word for event in events for word in event.words]


def pitches_hz(samples: Floats) -> Floats:
    """Return the pitch of each 20 ms by autocorrelation, NaN where it is unvoiced or quiet."""
    found = []
    lags = slice(SAMPLE_RATE_HZ // _MAX_HZ, SAMPLE_RATE_HZ // _MIN_HZ)
    for start in range(0, len(samples) - _WINDOW, _STEP):
        frame = samples[start : start + _WINDOW] - samples[start : start + _WINDOW].mean()
        correlation = np.correlate(frame, frame, "full")[_WINDOW - 1 :]
        lag = lags.start + int(np.argmax(correlation[lags]))
        is_voiced = correlation[lag] > 0.5 * correlation[0] > 0.05
        found.append(SAMPLE_RATE_HZ / lag if is_voiced else np.nan)
    return np.array(found, np.float32)


def measure(samples: Floats, words: list[WordTiming], text: str) -> list[Span]:
    """Measure the sentences of ``SPANS`` in the audio of ``text``."""
    spans = []
    for sentence, _ in SPANS:
        begin = text.index(sentence)
        inside = [word for word in words if begin <= word.start_char < begin + len(sentence)]
        start, end = inside[0].start_sample, inside[-1].end_sample
        part = samples[start:end]
        pitch_hz = float(np.nanmedian(pitches_hz(part)))
        spans.append(Span(len(part) / SAMPLE_RATE_HZ, integrated_lufs(part, SAMPLE_RATE_HZ), pitch_hz, start))
    return spans


def draw(samples: Floats, spans: list[Span], plain: list[Span]) -> str:
    """Return an SVG document: the envelope, the pitch, and what each sentence has against the plain one."""
    scale = _WIDTH / len(samples)
    envelope = [np.abs(part).max() for part in np.array_split(samples, _WIDTH // 2)]
    upper = "".join(f"L{2 * x} {_MIDDLE - _AMPLITUDE * level:.1f}" for x, level in enumerate(envelope))
    lower = "".join(f"L{2 * x} {_MIDDLE + _AMPLITUDE * level:.1f}" for x, level in reversed(list(enumerate(envelope))))
    dots = "".join(
        f'<circle cx="{scale * (_STEP * index + _WINDOW / 2):.1f}" cy="{240 - (pitch - _MIN_HZ) / 4:.1f}" r="1.5"/>'
        for index, pitch in enumerate(pitches_hz(samples))
        if pitch == pitch
    )
    labels = "".join(
        f'<path class="edge" d="M{scale * span.start_sample:.1f} 0V{_HEIGHT}"/>'
        f'<text x="{scale * span.start_sample + 4:.1f}" y="{12 * number + 12}">'
        f"{span.seconds / before.seconds:.2f} × length, "
        f"{span.lufs - before.lufs:+.1f} LU, {12 * np.log2(span.pitch_hz / before.pitch_hz):+.1f} semitones</text>"
        for number, (span, before) in enumerate(zip(spans, plain, strict=True))
    )
    style = "text{font:10px system-ui,sans-serif;fill:#444}.edge{stroke:#bbb}circle{fill:#c2410c}.wave{fill:#2563eb}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="Level and pitch of speech"><style>{style}</style>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
        f'<path class="wave" d="M0 {_MIDDLE}{upper}{lower}Z"/>{dots}{labels}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure and draw an utterance that changes.")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where the picture goes")
    picture = parser.parse_args().picture
    model = HibariModel()
    samples, words = speak(model, utterance())
    spans = measure(samples, words, utterance())
    plain = measure(*speak(model, utterance(plain=True)), utterance(plain=True))
    for (sentence, tag), span, before in zip(SPANS, spans, plain, strict=True):
        asked = re.sub("<prosody |>", "", tag) or "as it is"
        figures = f"{before.seconds:.2f} -> {span.seconds:.2f} s, {before.lufs:.1f} -> {span.lufs:.1f} LUFS"
        print(f"{sentence} ({asked}): {figures}, {before.pitch_hz:.0f} -> {span.pitch_hz:.0f} Hz")
    picture.write_text(draw(samples, spans, plain), "utf-8")


if __name__ == "__main__":
    main()
