"""Speaks one utterance through the streaming engine: alone, not paced, with credit without limit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from tts_worker.engine.base import Engine
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine
from tts_worker.engine.cosyvoice.memory import CPU_MEMORY_GB
from tts_worker.engine.cosyvoice.voices.enrolled import EnrolledVoices
from tts_worker.engine.cosyvoice.voices.speaker import Mode
from tts_worker.errors import EngineFault, as_exception
from tts_worker.types import (
    Audio,
    Done,
    EndText,
    Event,
    Failed,
    Open,
    Segment,
    Speech,
    SynthesisParams,
    Text,
    UtteranceKey,
)
from tts_worker.voices.files import Voice

KEY = UtteranceKey("offline", 0)
UNLIMITED_SAMPLES = 1 << 62


def load_offline_engine(bundle: Path, voices: dict[str, Voice], **options: Any) -> CosyVoiceEngine:
    """Load an engine with one slot.

    It is not warmed up: the first utterance is the only one.

    Args:
        bundle: Model directory.
        voices: Voices in memory, by name. They take precedence over those of the model directory.
        options: Other options of ``LoadOptions``.

    Raises:
        BundleError: Weights or graphs are missing or damaged.
        ConfigError: The options contradict each other, or the device is not available.
        MissingExtra: A package for the options is not installed.
    """
    enrolled = EnrolledVoices(bundle)
    for name, voice in voices.items():
        enrolled.store(name, voice)
    alone = LoadOptions(
        bundle, graphs=False, max_utterances=1, cached_voices=1, decode_batch=1, render_batch=1, **options
    )
    if alone.device == "cpu" and alone.memory_gb is None:
        alone = replace(alone, memory_gb=_memory_gb())
    return load_engine(alone, enrolled=enrolled)


def _memory_gb() -> float:
    """Limit of the flow cache: half of the machine. The operating system commits what the utterance uses."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (AttributeError, ValueError, OSError):  # not on Windows
        return CPU_MEMORY_GB
    return max(CPU_MEMORY_GB, physical / 2)


def voice_in_mode(voice: Voice, mode: Mode | None) -> Voice:
    """Return ``voice`` with only what ``mode`` uses, so that it is the voice's default mode."""
    ids = np.zeros(0, dtype=np.int32)
    if mode is Mode.CROSS_LINGUAL:
        return replace(voice, prompt_text="", prompt_text_ids=ids)
    if mode is Mode.SFT:
        return replace(voice, prompt_text="", prompt_text_ids=ids, tokens=ids, mel=voice.mel[:0], seconds=0.0)
    return voice


def speak(
    engine: Engine,
    params: SynthesisParams,
    segments: Iterable[Segment] = (),
    speech_tokens: Iterable[Sequence[int]] = (),
) -> Iterator[Audio | Done]:
    """Speak one utterance.

    Args:
        engine: Has no other utterance.
        params: Voice, speed, seed, language and instruction.
        segments: The complete text; empty for speech tokens.
        speech_tokens: Portions of speech tokens to render instead of text (voice conversion).

    Yields:
        One ``Audio`` per rendered chunk, as soon as it is rendered, then ``Done``.

    Raises:
        TTSWorkerError: The utterance failed.
    """
    engine.handle(Open(KEY, params, UNLIMITED_SAMPLES, paced=False))
    for tokens in speech_tokens:
        engine.handle(Speech(KEY, tuple(tokens)))
    for segment in segments:
        engine.handle(Text(KEY, segment))
    engine.handle(EndText(KEY))
    while engine.has_work:
        for event in _whole_chunks(engine.step(monotonic())):
            if isinstance(event, Failed):
                raise as_exception(event.error)
            yield event
            if isinstance(event, Done):
                return
    raise EngineFault("the engine came to rest before the utterance ended")


def _whole_chunks(events: Sequence[Event]) -> list[Event]:
    """Join the parts in which a rendered chunk is emitted. Only the first part names the stages."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Audio) and isinstance(last, Audio) and not event.meta.stages_ms:
            joined[-1] = replace(last, pcm=last.pcm + event.pcm, words=(*last.words, *event.words))
        else:
            joined.append(event)
    return joined
