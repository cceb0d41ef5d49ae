from __future__ import annotations

import pytest

from tts_worker.engine.cpu.hibari.model import HibariModel


@pytest.fixture(scope="session")
def hibari_model() -> HibariModel:
    """The model, loaded once: engines differ only in their utterances."""
    return HibariModel()
