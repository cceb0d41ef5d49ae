"""Admission to the pages of the flow cache.

A started segment or prompt takes pages on demand. A new one is admitted once there are enough pages for its whole
estimated length and for all started ones, so that it does not run out half-way. A new unpaced utterance (a download)
leaves a quarter of the pages to calls while another download holds pages. Prompts of unused voices are evicted to free
pages. The allocator only decides; the flow pool takes and returns the pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tts_worker.engine.cosyvoice.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.sequence import Utterance
from tts_worker.engine.cosyvoice.voice_cache import VoiceCache
from tts_worker.errors import OutOfMemory
from tts_worker.types import UtteranceKey, unpaced_share


class PageAllocator:
    """Decides which utterance may take pages.

    A refused utterance is ``waiting_for_pages`` until ``wake_page_waiters`` is called.
    """

    def __init__(self, pool: FlowPool, voice_cache: VoiceCache) -> None:
        self._pool = pool
        self._voice_cache = voice_cache
        self._paced_pages = max(0, pool.free_pages - unpaced_share(pool.free_pages))  # left to calls

    def can_prepare_prompt(self, utterance: Utterance, utterances: Sequence[Utterance]) -> bool:
        """Whether the rest of the utterance's voice prompt fits. No flow pass may be in flight.

        Raises:
            OutOfMemory: It does not fit, and no other utterance will free pages.
        """
        return self.can_render(utterance, self._prompt_pages(utterance), utterances, is_start=True)

    def can_render(self, utterance: Utterance, needed: int, utterances: Sequence[Utterance], *, is_start: bool) -> bool:
        """Whether ``utterance`` may take ``needed`` pages.

        Args:
            utterance: The utterance.
            needed: Pages of the next pass.
            utterances: All utterances of the engine.
            is_start: Whether a segment or prompt starts, for which the estimated length must fit.

        Raises:
            OutOfMemory: The pages do not suffice, and no other utterance will free any.
        """
        pool = self._pool
        others = [u for u in utterances if u is not utterance and self._holds_pages(u)]
        wanted = needed
        if is_start:
            wanted += sum(self._segment_pages(u) for u in (utterance, *others))
            wanted += sum(self._prompt_pages(u) for u in others)
            if not utterance.paced and any(not u.paced for u in others):
                wanted += self._paced_pages
        while pool.free_pages < wanted and self._voice_cache.evict_idle(pool):
            pass
        if pool.free_pages >= (wanted if others else needed):
            return True
        if is_start and (others or any(self._is_preparing_prompt(u) for u in utterances if u is not utterance)):
            utterance.waiting_for_pages = True
            return False
        raise OutOfMemory("no memory for more audio: end an utterance, or set more pages")

    def _holds_pages(self, utterance: Utterance) -> bool:
        """Whether it holds pages that it will return, of a segment or of a prompt in preparation."""
        generator = utterance.generator
        if generator.audio_segments and generator.audio_segments[0].state.flow is not None:
            return True
        if generator.voice is None or not self._is_preparing_prompt(utterance):
            return False
        return self._voice_cache.needs_prepare(generator.voice)

    @staticmethod
    def _is_preparing_prompt(utterance: Utterance) -> bool:
        """Whether it continues a prompt. Utterances that wait for pages themselves do not."""
        generator = utterance.generator
        if utterance.waiting_for_pages or not generator.has_pending_speech:
            return False
        return generator.voice is not None and generator.voice.flow is not None

    def _prompt_pages(self, utterance: Utterance) -> int:
        """Pages that the prompt of its voice will still take."""
        voice = utterance.generator.voice
        return 0 if voice is None else self._voice_cache.unprepared_pages(voice)

    def _segment_pages(self, utterance: Utterance) -> int:
        """Estimated pages that its current audio segment will still take."""
        if not utterance.generator.audio_segments:
            return 0
        segment = utterance.generator.audio_segments[0]
        tokens = max(segment.aligner.expected_tokens, len(segment.tokens)) - segment.rendered_tokens
        return max(0, int(tokens) // self._pool.chunk_tokens)


def wake_page_waiters(utterances: Mapping[UtteranceKey, Utterance]) -> None:
    """Let all waiting utterances try again, because pages were returned or will not be taken."""
    for utterance in utterances.values():
        utterance.waiting_for_pages = False
