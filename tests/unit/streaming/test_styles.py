"""The whole engine speaks an utterance whose style changes, without a gap and with all its words."""

from __future__ import annotations

import pytest

from tests.fakes.reading import read
from tests.unit.streaming.engines import engine
from tts_worker.text.options import TextOptions
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    EndText,
    Expression,
    Failed,
    Open,
    SynthesisParams,
    Text,
    UtteranceKey,
)


@pytest.mark.parametrize("family", ["cosyvoice2", "cosyvoice3"])
def test_engine_speaks_every_style(family: str) -> None:
    subject = engine(family)
    assert subject.info.unsupported_expressions(follows_instructions=True) == ()
    assert subject.info.unsupported_expressions(follows_instructions=False) == ("style",)
    text = "Well then [happy] this is good news, [sad] and it is over."
    key = UtteranceKey("styles", 1)
    segments = read(text, TextOptions(cuts_styles=True))
    assert [each.expression_at(each.spans[0].start) for each in segments][1] == Expression(style="happy")
    subject.handle(Open(key, SynthesisParams("prompted", seed=3), credit_samples=120 * SAMPLE_RATE_HZ))
    for segment in segments:
        subject.handle(Text(key, segment))
    subject.handle(EndText(key))
    words = []
    while key in subject.sequences:
        if not subject.has_work:
            assert subject.wait_for_work()
        for event in subject.step(0.0):
            assert not isinstance(event, Failed), event
            words += event.words if isinstance(event, Audio) else ()
    spoken = [text[word.start_char : word.end_char] for word in words]
    assert spoken == ["Well", "then", "this", "is", "good", "news,", "and", "it", "is", "over."]
