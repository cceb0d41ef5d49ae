"""One log record for each chunk of audio, at debug level. It never contains text."""

from __future__ import annotations

import hashlib
import logging

import numpy as np

from tts_worker.logs import fields
from tts_worker.types import Audio

chunk_log = logging.getLogger("tts_worker.chunks")


def log_chunk(engine: str, audio: Audio) -> None:
    """Log position, length, range of samples, SHA-256, stage times and details of a chunk as the engine made it.

    The samples are 24 kHz s16le. CosyVoice's details are the speech tokens and mel frames that the chunk was rendered
    from, counted from the start of its audio segment, and the range of the mel.

    Costs about 0.1 ms: call it only if the logger is enabled.
    """
    samples = np.frombuffer(audio.pcm, "<i2")
    meta = audio.meta
    chunk_log.debug(
        "chunk",
        extra=fields(
            engine=engine,
            session=audio.key.session,
            utterance=audio.key.generation,
            chunk=meta.index,
            start_sample=meta.start_sample,
            samples=audio.samples,
            text_start=meta.text_start,
            text_end=meta.text_end,
            pcm_min=int(samples.min()) if samples.size else None,
            pcm_max=int(samples.max()) if samples.size else None,
            sha256=hashlib.sha256(audio.pcm).hexdigest(),
            wall_ms=round(meta.wall_ms, 3),
            **{f"{stage}_ms": round(milliseconds, 3) for stage, milliseconds in meta.stages_ms},
            **{name: round(value, 6) for name, value in meta.details},
        ),
    )
