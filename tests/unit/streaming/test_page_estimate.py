"""Pages that a started audio segment will still take."""

from __future__ import annotations

import pytest

from tests.unit.streaming.engines import bundle, engine
from tts_worker.engine.cosyvoice.audio.chunks import Chunk
from tts_worker.engine.cosyvoice.audio.renderer import RenderState
from tts_worker.engine.cosyvoice.audio.segment import AudioSegment


@pytest.mark.parametrize(("tokens", "pages"), [(8, 0), (9, 1), (33, 1), (34, 2), (75, 3), (83, 3)])
def test_started_segment_counts_its_last_partial_page(tokens: int, pages: int) -> None:
    """Rounded down, admission would promise a page to a new call, and the started call would run out of memory."""
    config = bundle("cosyvoice3").config
    subject = engine("cosyvoice3")
    voice = subject.components.voice_cache.acquire("prompted")
    segment = AudioSegment(RenderState(voice, 0), config, pace=1.0)
    segment.tokens.extend(range(100, 100 + tokens))
    segment.mark_rendered(Chunk(0, 8, 11, False))

    assert segment.pages_ahead == pages
