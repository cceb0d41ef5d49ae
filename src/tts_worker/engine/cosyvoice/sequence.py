"""One utterance inside the engine: its generator, its credit, and the next operation that it needs.

The engine schedules; an utterance only reports what it needs and whether it can emit.
"""

from __future__ import annotations

from collections.abc import Callable

from tts_worker.engine.cosyvoice.token_generator import Model, TokenGenerator
from tts_worker.engine.cosyvoice.voice_cache import VoiceState
from tts_worker.engine.output_buffer import OutputBuffer
from tts_worker.engine.scheduler import Need
from tts_worker.types import SAMPLE_RATE_HZ, Boundary, Open, Segment, Span

_MIN_EMIT_SAMPLES = SAMPLE_RATE_HZ // 10


class Utterance:
    """State of one utterance.

    Attributes:
        output: Rendered audio that waits for credit.
        generator: Turns text into speech tokens.
        slot: Slot of the language model.
        is_held: Whether the utterance is paused by ``Hold``.
        cancelled: Whether results must be dropped.
        is_decoding: Whether a language model pass is in flight.
        is_rendering: Whether a flow pass is in flight.
        waiting_for_pages: Whether admission refused pages; another utterance will free some.
        retry_single: Whether a batch with it failed; it runs alone until it succeeds.
        rendered_chunks: Chunks rendered so far.
        in_flight_samples: Samples queued before the vocoder or in it.
        waiting_since_us: Since when an operation has been due; ``None`` if none is.
        lm_ms: Language model time since the last rendered chunk.
    """

    def __init__(self, command: Open, model: Model, slot: int) -> None:
        self.output = OutputBuffer(command.key, command.credit_samples, paced=command.paced, buffered=command.buffered)
        self.generator = TokenGenerator(command.key, command.params, model, command.speech_tokens)
        self.slot = slot
        self.is_held = False
        self.cancelled = False
        self.is_decoding = False
        self.is_rendering = False
        self.waiting_for_pages = False
        self.retry_single = False
        self.rendered_chunks = 0
        self.in_flight_samples = 0
        self.waiting_since_us: int | None = None
        self.lm_ms = 0.0

    @property
    def paced(self) -> bool:
        """Whether the listener takes audio at the rate of playback: a call, not a download."""
        return self.output.paced

    @property
    def has_capacity(self) -> bool:
        """Whether the credit exceeds the audio that is rendered or in flight."""
        return self.output.credit_samples > self.output.waiting_samples + self.in_flight_samples

    def next_op(self, needs_prepare: Callable[[VoiceState], bool]) -> Need:
        """Return the next operation: NONE while held, out of credit, without text, or on the device.

        Args:
            needs_prepare: Whether the prompt of a voice is not fully computed.
        """
        if self.is_held or self.cancelled or not self.has_capacity:
            return Need.NONE
        generator = self.generator
        if generator.has_pending_speech and (generator.voice is None or needs_prepare(generator.voice)):
            return Need.NONE if self.waiting_for_pages else Need.PREPARE_VOICE
        segment = generator.due_segment
        if segment is None:
            return self.next_token_op()
        if not self.is_rendering:
            return Need.NONE if self.waiting_for_pages else Need.RENDER
        # While a chunk is being rendered, the tokens of the next one can be drawn.
        has_next_chunk = generator.unrendered_tokens >= segment.tokens_for_next_chunk
        return Need.NONE if has_next_chunk else self.next_token_op()

    def next_token_op(self) -> Need:
        """Return PREFILL or DECODE if the language model can continue, otherwise NONE."""
        generator = self.generator
        if self.is_decoding or self.is_held or generator.voice is None:
            return Need.NONE
        if generator.run is None:
            return Need.PREFILL if generator.can_begin_run else Need.NONE
        if generator.run.waits_for_text:
            return Need.NONE
        return Need.DECODE if generator.needs_only_last_id else Need.PREFILL

    @property
    def is_finished(self) -> bool:
        if self.is_held or self.output.waiting_samples:
            return False
        return self.generator.text_ended and not self.generator.has_pending_speech

    @property
    def can_emit(self) -> bool:
        """Whether a chunk is worth emitting. Coalesces small credits of 20 ms into chunks of 100 ms."""
        output = self.output
        if self.is_held or not output.can_emit:
            return False
        enough_samples = min(output.waiting_samples, _MIN_EMIT_SAMPLES)
        untaken_samples = output.emitted_samples - output.taken_samples
        return output.credit_samples >= enough_samples or untaken_samples < _MIN_EMIT_SAMPLES


def plain_segment(text: str) -> Segment:
    """Return all of ``text`` as one segment."""
    return Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)
