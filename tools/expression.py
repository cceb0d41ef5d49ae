"""Measures an utterance that changes its mood, rate, level and pitch, records and draws it.

    python -m tools.expression --picture docs/images/expression.svg --recording docs/audio/heart-expression.mp3
    python -m tools.expression --voice nano --json

Each sentence is compared with the same one spoken as the voice has it.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tts_worker.audio.loudness import integrated_lufs
from tts_worker.audio.pcm import Floats, to_float, to_pcm
from tts_worker.client.speech import Speech
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel
from tts_worker.engine.shell import EngineShell
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import SAMPLE_RATE_HZ, Audio, EndText, Open, SynthesisParams, Text, UtteranceKey, WordTiming
from tts_worker.voices.installed import FOLDER, installed_voices

SPANS = (
    ("We have found your order.", ""),
    (
        "I am so sorry, it was lost on the way.",
        "<expr type='expression' label='sad'><prosody rate='80%' volume='-4dB' pitch='-1st'>",
    ),
    (
        "But there is good news, a new one comes tomorrow!",
        "<expr type='expression' label='happy'><prosody rate='125%' volume='+3dB' pitch='+2st'>",
    ),
)
"""Sentences, and what changes each."""

_END_TAGS = "</prosody></expr>"
_NANO = Path(__file__).parents[1] / "packages" / "tts-worker-voice-nano" / "tts_worker_voice_nano" / FOLDER / "nano"
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
    return " ".join(text if plain or not tag else f"{tag}{text}{_END_TAGS}" for text, tag in SPANS)


def load(voice: str) -> EngineShell[Any]:
    """Return the engine of ``heart``, or of a voice with a model of CosyVoice that is installed or in this clone."""
    if voice == VOICE:
        return HibariEngine(HibariModel())
    from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine

    return load_engine(LoadOptions(installed_voices().get(voice, _NANO), device="cpu", threads=1))


def speak(engine: EngineShell[Any], text: str) -> tuple[Floats, list[WordTiming]]:
    """Return the samples of a text and its words, by the first voice of an engine."""
    key = UtteranceKey("expression", 1)
    engine.handle(Open(key, SynthesisParams(engine.info.voices[0]), credit_samples=60 * SAMPLE_RATE_HZ))
    pipeline = TextPipeline()
    for segment in [*pipeline.feed(text), *pipeline.end()]:
        engine.handle(Text(key, segment))
    engine.handle(EndText(key))
    events = []
    while key in engine.sequences and (engine.has_work or engine.wait_for_work()):
        events += [event for event in engine.step(0.0) if isinstance(event, Audio)]
    return to_float(b"".join(event.pcm for event in events)), [word for event in events for word in event.words]


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


def figures(spans: list[Span], plain: list[Span]) -> list[dict[str, Any]]:
    """Return what is measured of each sentence, as the voice has it and as it was asked to be."""
    return [
        {
            "text": sentence,
            "markup": re.sub("[<>]", "", tag.replace("><", ", ")),
            "seconds": [round(each.seconds, 2) for each in (before, span)],
            "lufs": [round(each.lufs, 1) for each in (before, span)],
            "pitch_hz": [round(each.pitch_hz) for each in (before, span)],
            "semitones": round(12 * float(np.log2(span.pitch_hz / before.pitch_hz)), 1),
        }
        for (sentence, tag), span, before in zip(SPANS, spans, plain, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure, record and draw an utterance that changes.")
    parser.add_argument("--voice", default=VOICE, help="heart, or a voice of CosyVoice such as nano")
    parser.add_argument("--picture", type=Path, help="SVG file to draw")
    parser.add_argument("--recording", type=Path, help="audio file to write, such as .wav or .mp3")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    engine = load(options.voice)
    samples, words = speak(engine, utterance())
    spans = measure(samples, words, utterance())
    plain = measure(*speak(engine, utterance(plain=True)), utterance(plain=True))
    result = figures(spans, plain)
    if options.json:
        print(json.dumps({"voice": options.voice, "sentences": result}))
    else:
        print(*(f"{name}: {value}" for each in result for name, value in each.items()), sep="\n")
    if options.picture is not None:
        options.picture.write_text(draw(samples, spans, plain), "utf-8")
    if options.recording is not None:
        Speech(to_pcm(samples), SAMPLE_RATE_HZ).save(options.recording)


if __name__ == "__main__":
    main()
