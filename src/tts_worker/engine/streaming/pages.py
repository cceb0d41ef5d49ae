"""Who may take pages of the flow's memory, who waits for some, and who goes without.

What has begun may take what there is; what begins waits until there is enough for all of it, so that it need not end
half-way. Unpaced streams (downloads) that begin beside one another leave a quarter of the memory to calls. Prompts
that nobody uses make room. Decides by what utterances hold and by what their texts let expect; takes
and gives back nothing itself, and must not know what a page holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tts_worker.engine.cosyvoice.flow.stream import FlowPool
from tts_worker.engine.streaming.utterance import Utterance
from tts_worker.engine.streaming.voices import VoiceBook
from tts_worker.errors import OutOfMemory
from tts_worker.types import UtteranceKey, unpaced_share


class Pages:
    """See the module. Whoever is refused for now is ``blocked`` until ``unblock``."""

    def __init__(self, pool: FlowPool, book: VoiceBook) -> None:
        self._pool = pool
        self._book = book
        self._paced_pages = max(0, pool.free_pages - unpaced_share(pool.free_pages))  # that downloads leave to calls

    def for_prompt(self, utterance: Utterance, everyone: Sequence[Utterance]) -> bool:
        """Whether there are pages for what is not there yet of its voice's prompt. The flow must not be at anything.
        Raises OutOfMemory where nobody will ever free any."""
        return self.for_sound(utterance, self._prompt(utterance), everyone, begins=True)

    def for_sound(self, utterance: Utterance, needed: int, everyone: Sequence[Utterance], *, begins: bool) -> bool:
        """Whether it may take ``needed`` pages. Raises OutOfMemory where nobody will ever free any."""
        pool = self._pool
        others = [u for u in everyone if u is not utterance and self._holds(u)]
        wanted = needed
        if begins:
            wanted += sum(self._passage(u) for u in (utterance, *others)) + sum(self._prompt(u) for u in others)
            if not utterance.paced and any(not u.paced for u in others):
                wanted += self._paced_pages
        while pool.free_pages < wanted and self._book.shrink(pool):
            pass
        if pool.free_pages >= (wanted if others else needed):
            return True
        if begins and (others or any(self._goes_on(u) for u in everyone if u is not utterance)):
            utterance.blocked = True
            return False
        raise OutOfMemory("there is no memory for more sound: end an utterance, or set more pages")

    def _holds(self, utterance: Utterance) -> bool:
        """Whether it has pages that it goes on with, and then gives back: of its sound, or of a prompt on its way."""
        talk = utterance.talk
        if talk.passages and talk.passages[0].stream.flow is not None:
            return True
        return talk.voice is not None and self._goes_on(utterance) and self._book.missing(talk.voice)

    @staticmethod
    def _goes_on(utterance: Utterance) -> bool:
        """Whether it has a prompt that it goes on with. Those who wait for pages themselves do not."""
        talk = utterance.talk
        return not utterance.blocked and talk.waits and talk.voice is not None and talk.voice.flow is not None

    def _prompt(self, utterance: Utterance) -> int:
        """Pages that its voice's prompt will still take."""
        return 0 if utterance.talk.voice is None else self._book.missing_pages(utterance.talk.voice)

    def _passage(self, utterance: Utterance) -> int:
        """Pages that the passage being spoken will still take, as far as its text tells."""
        if not utterance.talk.passages:
            return 0
        passage = utterance.talk.passages[0]
        tokens = max(passage.clock.expected_tokens, len(passage.tokens)) - passage.rendered_tokens
        return max(0, int(tokens) // self._pool.chunk_tokens)


def unblock(utterances: Mapping[UtteranceKey, Utterance]) -> None:
    """Pages were given back, or will not be taken: whoever waited for some may look again."""
    for utterance in utterances.values():
        utterance.blocked = False
