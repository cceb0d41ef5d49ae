"""What utterances hold of the flow cache and will still take, as input of the scheduler, which admits them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tts_worker.engine.cosyvoice.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.sequence import Utterance
from tts_worker.engine.cosyvoice.voice_cache import VoiceCache
from tts_worker.engine.scheduler import PageClaim
from tts_worker.types import UtteranceKey


def page_claims(utterances: Iterable[Utterance], pool: FlowPool, voice_cache: VoiceCache) -> list[PageClaim]:
    """Return the claims of the utterances that will return pages."""
    claims = []
    for utterance in utterances:
        holds = _holds_pages(utterance, voice_cache)
        if holds or _is_preparing_prompt(utterance):
            ahead = segment_pages(utterance, pool) + prompt_pages(utterance, voice_cache)
            claims.append(PageClaim(utterance.output.key, utterance.paced, holds, ahead))
    return claims


def prompt_pages(utterance: Utterance, voice_cache: VoiceCache) -> int:
    """Return the pages that the prompt of its voice will still take."""
    voice = utterance.generator.voice
    return 0 if voice is None else voice_cache.unprepared_pages(voice)


def segment_pages(utterance: Utterance, pool: FlowPool) -> int:
    """Return the estimated pages that its current audio segment will still take."""
    if not utterance.generator.audio_segments:
        return 0
    segment = utterance.generator.audio_segments[0]
    tokens = max(segment.aligner.expected_tokens, len(segment.tokens)) - segment.rendered_tokens
    return max(0, int(tokens) // pool.chunk_tokens)


def _holds_pages(utterance: Utterance, voice_cache: VoiceCache) -> bool:
    """Whether it holds pages that it will return, of a segment or of a prompt in preparation."""
    generator = utterance.generator
    if generator.audio_segments and generator.audio_segments[0].state.flow is not None:
        return True
    if generator.voice is None or not _is_preparing_prompt(utterance):
        return False
    return voice_cache.needs_prepare(generator.voice)


def _is_preparing_prompt(utterance: Utterance) -> bool:
    """Whether it continues a prompt. Utterances that wait for pages themselves do not."""
    generator = utterance.generator
    if utterance.waiting_for_pages or not generator.has_pending_speech:
        return False
    return generator.voice is not None and generator.voice.flow is not None


def wake_page_waiters(utterances: Mapping[UtteranceKey, Utterance]) -> None:
    """Let all waiting utterances try again, because pages were returned or will not be taken."""
    for utterance in utterances.values():
        utterance.waiting_for_pages = False
