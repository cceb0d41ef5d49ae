"""Whether one hears where streamed audio was computed: spectral change at chunk boundaries against elsewhere.

The teacher's codes of the held-out sentences go through flow and vocoder twice: streamed by the engine, chunk by chunk,
and offline, in one pass with the same mask and with attention to the whole sentence. The spectral flux (distance of
neighboring log mel frames) of the streamed audio less that of the offline audio, at the same time of the same
sentence, shows what the boundary adds. Its mean at the boundaries is compared with its mean at as many random times of
the same audio, drawn many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tools.train.bundle import CODES
from tools.train.codes import CodeBook
from tools.train.evaluate import vocode
from tools.train.flow import flow_mel
from tools.train.speech_data import read_units
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.voices.speaker import bundled_voices
from tts_worker.features.offline.engine import load_offline_engine, speak
from tts_worker.types import SAMPLE_RATE_HZ, Audio, SynthesisParams
from tts_worker.voices.files import VOICES_DIR, load_voice, stored_voices

HOP = SAMPLE_RATE_HZ // 100
_WINDOW = 2 * HOP
_REACH = 20  # hops before and after a boundary that are drawn
_DRAWS = 2000
_EDGE = 10  # hops at the ends of a sentence that are left out
_FLOOR = 1e-3

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class BoundaryStudy:
    """Result.

    Attributes:
        boundaries: Number of boundaries.
        streamed: ``[2*reach+1]`` mean flux around them, streamed.
        offline: The same of the offline audio.
        elsewhere: Mean flux of the streamed audio.
        excess: What streaming adds to the flux at the boundaries, relative to ``elsewhere``.
        usual: 2.5 % and 97.5 % of the same of as many random times.
    """

    boundaries: int
    streamed: Floats
    offline: Floats
    elsewhere: float
    excess: float
    usual: tuple[float, float]


def flux(pcm: Floats) -> Floats:
    """Spectral flux at every hop: RMS difference of the log spectra before and after it."""
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(pcm, _WINDOW), _WINDOW)[::HOP] * np.hanning(_WINDOW)
    spectrum = np.log(np.abs(np.fft.rfft(frames, axis=1)) + _FLOOR)
    change = np.sqrt(np.square(spectrum[2:] - spectrum[:-2]).mean(1))  # windows that touch at the hop
    return np.asarray(change)


def study(clips: Sequence[tuple[Floats, Floats, Sequence[int]]], seed: int = 0) -> BoundaryStudy:
    """Compare ``clips``: streamed audio, offline audio (both -1 to 1) and the samples at which chunks begin."""
    rng = np.random.default_rng(seed)
    around: list[tuple[Floats, Floats]] = []
    added, levels = [], []
    at_boundary, counts = [], []
    for streamed, offline, begins in clips:
        ours, theirs = flux(streamed), flux(offline)
        length = min(len(ours), len(theirs))
        difference = ours[:length] - theirs[:length]
        hops = [round(begin / HOP) + 1 for begin in begins]
        inside = [hop for hop in hops if _REACH <= hop < length - _REACH]
        around += [(ours[h - _REACH : h + _REACH + 1], theirs[h - _REACH : h + _REACH + 1]) for h in inside]
        at_boundary += difference[inside].tolist()
        added.append(difference[_EDGE : length - _EDGE])
        levels.append(ours[_EDGE : length - _EDGE])
        counts.append(len(inside))
    level = float(np.concatenate(levels).mean())
    pool = np.concatenate([part for part, count in zip(added, counts, strict=True) if count])
    random = rng.choice(pool, (_DRAWS, len(at_boundary))).mean(1) / level
    low, high = np.quantile(random, (0.025, 0.975))
    ours_mean, theirs_mean = np.mean(around, axis=0)
    excess = float(np.mean(at_boundary)) / level
    return BoundaryStudy(len(at_boundary), ours_mean, theirs_mean, level, excess, (float(low), float(high)))


def measure(path: Path, sentences: Sequence[str], graph: Path) -> BoundaryStudy:
    """Speak ``sentences`` with the bundle ``path`` and compare."""
    bundle = Bundle.open(path)
    book = CodeBook.load(path / CODES)
    units = read_units(sentences, graph, 1)
    codes = book.encode(book.numbers(units.units)[units.halves], units.pitch_hz)
    name = stored_voices(path / VOICES_DIR)[0]
    voice = load_voice(path / VOICES_DIR, name)
    engine = load_offline_engine(path, {name: voice}, device="cpu", threads=torch.get_num_threads())
    networks = Networks.load(bundle)
    speaker = torch.from_numpy(
        np.array(next(iter(bundled_voices(bundle.speaker_info, bundle.config).values())).embedding)
    )[None]
    clips = []
    for i in range(len(units.tokens)):
        tokens = units.of(codes, i)
        chunks = [
            event.pcm
            for event in speak(engine, SynthesisParams(name, seed=i), (), [tokens.tolist()])
            if isinstance(event, Audio)
        ]
        begins = np.cumsum([len(pcm) // 2 for pcm in chunks])[:-1].tolist()
        offline = vocode(networks, flow_mel(networks.chunked_flow, tokens, speaker), seed=i)
        clips.append((_floats(b"".join(chunks)), _floats(offline), begins))
    return study(clips)


def draw(result: BoundaryStudy) -> str:
    """An SVG image: mean flux around the boundaries."""
    width, height, left, top = 560, 220, 48, 34
    highest = 1.15 * max(float(result.streamed.max()), float(result.offline.max()), result.elsewhere)

    def place(hop: int, value: float) -> str:
        x = left + (hop + _REACH) / (2 * _REACH) * (width - 2 * left)
        return f"{x:.1f} {height - top - value / highest * (height - 2 * top):.1f}"

    def line(values: Floats, style: str) -> str:
        points = "L".join(place(i - _REACH, float(value)) for i, value in enumerate(values))
        return f'<path d="M{points}" style="{style}"/>'

    mean = np.full(2 * _REACH + 1, result.elsewhere)
    marks = "".join(
        f'<text x="{place(hop, 0).split()[0]}" y="{height - top + 15}" text-anchor="middle">{10 * hop} ms</text>'
        for hop in (-_REACH, 0, _REACH)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        "<style>text{font:12px sans-serif;fill:#333}path{fill:none;stroke-width:1.5}</style>"
        f'<text x="8" y="17">Spectral flux around {result.boundaries} chunk boundaries: streamed (blue), offline '
        "(orange), mean elsewhere (gray)</text>"
        f'<path d="M{place(0, 0)}L{place(0, highest)}" style="stroke:#ccc"/>'
        f"{line(mean, 'stroke:#999;stroke-dasharray:4')}{line(result.offline, 'stroke:#d80')}"
        f"{line(result.streamed, 'stroke:#36c')}"
        f'<text x="4" y="{top + 4}">{highest:.2f}</text><text x="4" y="{height - top}">0</text>{marks}</svg>\n'
    )


def _floats(pcm: bytes) -> Floats:
    return np.frombuffer(pcm, "<i2") / 32768
