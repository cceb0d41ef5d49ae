"""Speech of the CPU voice, plain and marked."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quality.sentences import SENTENCES
from tts_worker.engine.factory import EngineFactory
from tts_worker.engine.shell import EngineShell
from tts_worker.features.marking.watermark import Watermark, watermark_gains
from tts_worker.settings import load_settings
from tts_worker.types import Segment, SynthesisParams, UtteranceKey

DEPLOYMENT_ID = 0x5EED1234


@pytest.fixture(scope="session")
def speech() -> bytes:
    """About 25 s of speech, s16le at 24 kHz."""
    engine = EngineFactory(load_settings().engines["hibari"])()
    assert isinstance(engine, EngineShell)
    text = " ".join(SENTENCES[-5:])
    return engine.speak(UtteranceKey("marking", 1), SynthesisParams("heart"), [Segment.whole(text)])


@pytest.fixture(scope="session")
def marked(speech: bytes) -> np.ndarray:
    """The same speech with the watermark, ``[N]``."""
    marker = Watermark(watermark_gains(DEPLOYMENT_ID))
    return np.frombuffer(marker.process(speech) + marker.flush(), "<i2").astype(np.float32)
