from __future__ import annotations

import pytest

from tts_worker.engine.hibari_model import HibariModel


@pytest.fixture(scope="session")
def hibari_model() -> HibariModel:
    """Loaded once: what differs between engines is their utterances."""
    return HibariModel()
