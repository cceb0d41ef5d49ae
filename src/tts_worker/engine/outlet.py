"""What one utterance has made and may emit: the credit book-keeping that every engine needs, written once.

An engine *renders* sound of any length into the outlet; the outlet *emits* it in slices that never exceed the credit,
keeps the rest, numbers the chunks and announces each word with the chunk it begins in. Pure: no clock, no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Audio, ChunkMeta, UtteranceKey, WordTiming


@dataclass(slots=True)
class _Piece:
    """Rendered sound not yet emitted. ``offset`` samples of it are gone already."""

    pcm: bytes
    text_start: int
    text_end: int
    wall_ms: float
    stages_ms: tuple[tuple[str, float], ...]
    offset: int = 0

    @property
    def samples_left(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE - self.offset


class Outlet:
    """The way out for one utterance's sound.

    ``rendered_samples`` were made, ``emitted_samples`` of them left, ``lead_samples`` of those were not taken by the
    listener yet. ``credit_samples`` is what may still leave now. ``paced``: the listener takes audio as it is played.
    """

    def __init__(self, key: UtteranceKey, credit_samples: int, *, paced: bool = True) -> None:
        self.key = key
        self.paced = paced
        self.credit_samples = credit_samples
        self.rendered_samples = 0
        self.emitted_samples = 0
        self.taken_samples = 0
        self._playhead_samples = 0
        self._playhead_at_us: int | None = None  # when the virtual playhead was there; None: nothing to play yet
        self._chunks = 0
        self._pieces: deque[_Piece] = deque()
        self._words: deque[WordTiming] = deque()

    @property
    def lead_samples(self) -> int:
        """Made and not yet taken: how far this utterance is ahead of its listener."""
        return self.rendered_samples - self.taken_samples

    def lead_at_samples(self, now_us: int) -> int:
        """How far this utterance is ahead of playback at ``now_us``, which never goes back.

        A reader that is not paced takes audio long before it is played. It is measured against a virtual playhead that
        starts with the first chunk, moves at the sample rate and stops where there is nothing to play.
        """
        if self.paced:
            return self.lead_samples
        if self._playhead_at_us is not None:
            elapsed_samples = (now_us - self._playhead_at_us) * SAMPLE_RATE_HZ // 1_000_000
            self._playhead_samples = min(self.rendered_samples, self._playhead_samples + elapsed_samples)
        self._playhead_at_us = now_us if self.emitted_samples else None
        return self.rendered_samples - self._playhead_samples

    @property
    def waiting_samples(self) -> int:
        """Rendered and not yet emitted."""
        return self.rendered_samples - self.emitted_samples

    @property
    def can_emit(self) -> bool:
        return self.credit_samples > 0 and bool(self._pieces)

    def grant(self, samples: int) -> None:
        """The listener took ``samples``; as many more may leave."""
        self.credit_samples += samples
        self.taken_samples += samples

    def render(
        self,
        pcm: bytes,
        words: Iterable[WordTiming] = (),
        *,
        text_range: tuple[int, int] = (0, 0),
        wall_ms: float = 0.0,
        stages_ms: tuple[tuple[str, float], ...] = (),
    ) -> None:
        """Add sound (s16le) and the words that begin in it, in utterance samples and in order."""
        self._words.extend(words)
        if pcm:
            self._pieces.append(_Piece(pcm, text_range[0], text_range[1], wall_ms, stages_ms))
            self.rendered_samples += len(pcm) // BYTES_PER_SAMPLE

    def emit(self, max_samples: int, *, last: bool = False) -> Audio | None:
        """The next chunk: at most ``max_samples``, at most the credit, never across two rendered pieces.

        Words that begin before the chunk ends travel with it; with ``last=True`` the chunk that empties the outlet
        takes every word that is left (a word without sound at the very end).
        """
        if not self.can_emit:
            return None
        piece = self._pieces[0]
        samples = min(max_samples, self.credit_samples, piece.samples_left)
        start, end = piece.offset * BYTES_PER_SAMPLE, (piece.offset + samples) * BYTES_PER_SAMPLE
        pcm = piece.pcm[start:end]
        # The cost of a rendered piece is reported once, with its first slice.
        first = piece.offset == 0
        meta = ChunkMeta(
            index=self._chunks,
            text_start=piece.text_start,
            text_end=piece.text_end,
            start_sample=self.emitted_samples,
            wall_ms=piece.wall_ms if first else 0.0,
            stages_ms=piece.stages_ms if first else (),
        )
        piece.offset += samples
        if piece.samples_left == 0:
            self._pieces.popleft()
        self.emitted_samples += samples
        self.credit_samples -= samples
        self._chunks += 1
        take_all = last and not self._pieces
        words: list[WordTiming] = []
        while self._words and (take_all or self._words[0].start_sample < self.emitted_samples):
            words.append(self._words.popleft())
        return Audio(self.key, pcm, meta, tuple(words))
