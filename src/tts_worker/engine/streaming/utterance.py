"""One caller as the engine serves it: the text on its way (talk.py), the credit, and what is needed next.

It says what it needs and whether sound may leave; whose turn it is, is the engine's matter. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from tts_worker.engine.output_buffer import OutputBuffer
from tts_worker.engine.streaming.talk import Model, Talk
from tts_worker.engine.streaming.voices import VoiceState
from tts_worker.types import SAMPLE_RATE_HZ, Boundary, Open, Segment, Span

_SHORTEST_SLICE_SAMPLES = SAMPLE_RATE_HZ // 10


class Need(Enum):
    """What an utterance waits for."""

    NOTHING = "nothing"
    VOICE = "voice"  # to be read and prepared
    FEED = "feed"  # text, or more than one input, into the language model
    DECODE = "decode"  # speech tokens
    RENDER = "render"  # a chunk is due


class Utterance:
    """See the module. ``slot`` is its place in the language model.

    ``decoding``, ``rendering``: the language model, the flow is at it. ``blocked``: there is no memory for its sound at
    present; somebody else will free some. ``alone``: a batch with it failed, so it goes by itself. ``gone``: nothing of
    it may come out any more. ``coming_samples``: what lies before the vocoder, or in it.
    """

    def __init__(self, command: Open, model: Model, slot: int) -> None:
        self.output = OutputBuffer(command.key, command.credit_samples, paced=command.paced)
        self.talk = Talk(command.key, command.params, model)
        self.slot = slot
        self.held = self.gone = False
        self.decoding = self.rendering = self.blocked = self.alone = False
        self.chunks = 0
        self.coming_samples = 0
        self.waiting_since_us: int | None = None
        self.lm_ms = 0.0  # spent since the last chunk

    @property
    def paced(self) -> bool:
        return self.output.paced

    @property
    def awaits_first_audio(self) -> bool:
        """Whether a call waits for its first chunk, so that no download may make its passes longer."""
        return self.paced and not self.output.emitted_samples

    @property
    def has_room(self) -> bool:
        """The listener has room for more than is waiting already."""
        return self.output.credit_samples > self.output.waiting_samples + self.coming_samples

    def need(self, voice_missing: Callable[[VoiceState], bool]) -> Need:
        """What it waits for now; NOTHING while it is held, out of credit, without text, or on the device."""
        if self.held or self.gone or not self.has_room:
            return Need.NOTHING
        talk = self.talk
        if talk.waits and (talk.voice is None or voice_missing(talk.voice)):
            return Need.NOTHING if self.blocked else Need.VOICE
        head = talk.due
        if head is None:
            return self.token_need()
        if not self.rendering:
            return Need.NOTHING if self.blocked else Need.RENDER
        # While a chunk is being rendered, the tokens of the next one can be drawn.
        return self.token_need() if talk.ahead_tokens < head.missing_after_due else Need.NOTHING

    def token_need(self) -> Need:
        """FEED or DECODE if the language model can go on."""
        talk = self.talk
        if self.decoding or self.held or talk.voice is None:
            return Need.NOTHING
        if talk.run is None:
            return Need.FEED if talk.may_begin else Need.NOTHING
        if talk.run.waits_for_text:
            return Need.NOTHING
        return Need.DECODE if talk.only_last_unfed else Need.FEED

    @property
    def finished(self) -> bool:
        return self.talk.ended and not self.talk.waits and not self.held and not self.output.waiting_samples

    @property
    def can_emit(self) -> bool:
        """Whether it is worth sending: a listener's every 20 ms need not become a chunk of their own."""
        output = self.output
        if self.held or not output.can_emit:
            return False
        enough = min(output.waiting_samples, _SHORTEST_SLICE_SAMPLES)
        on_the_way = output.emitted_samples - output.taken_samples
        return output.credit_samples >= enough or on_the_way < _SHORTEST_SLICE_SAMPLES


def plain_segment(text: str) -> Segment:
    """All of ``text`` as one segment."""
    return Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)
