"""What one caller's text becomes: segments -> runs of the language model -> passages of speech tokens.

Owns everything that decides *what* is said: the order of runs, the context they carry, their seeds, the guard's
verdicts. All of it follows from text, params and drawn ids, never from time, credit or company. It is told what was
drawn and knows no tensor, no listener and no other utterance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tts_worker.engine.cosyvoice.chunks import Interleave, InterleaveRule, Kind
from tts_worker.engine.cosyvoice.compat import SILENT_TOKENS, Compat, SilenceFilter
from tts_worker.engine.cosyvoice.config import V3, CosyVoiceConfig
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.engine.streaming.config import StreamingConfig, TextMode
from tts_worker.engine.streaming.guard import TokenGuard
from tts_worker.engine.streaming.passage import Passage
from tts_worker.engine.streaming.render import SoundStream, Stretch
from tts_worker.engine.streaming.runs import MAX_RATIO, MIN_RATIO, ClauseRun, InterleavedRun
from tts_worker.engine.streaming.voices import VoiceState
from tts_worker.errors import SynthesisFailed, TextTooLong
from tts_worker.text.characters import is_unspaced
from tts_worker.text.spoken_words import SpokenWord, spoken_words
from tts_worker.types import Boundary, Segment, SynthesisParams, UtteranceKey

_CLOSING = frozenset({Boundary.SENTENCE, Boundary.PARAGRAPH, Boundary.FLUSH, Boundary.END})
_SENTENCE_ENDS = tuple(".!?…。！？")
_SPEECH_PER_TEXT = 7  # tokens, of slow English
_MASK = (1 << 64) - 1

Script = Callable[[UtteranceKey, int], Sequence[int]]
"""What run number n of an utterance says, its end included, instead of what is drawn: for benchmarks and tests."""


def mixed_seed(seed: int, *numbers: int) -> int:
    """``seed`` itself for zeros only, else another one that follows from all numbers: 0 .. 2^63 - 1."""
    if not any(numbers):
        return seed
    for number in numbers:  # splitmix64 (Steele, Lea and Flood 2014)
        seed = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
        seed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        seed = ((seed ^ (seed >> 27)) * 0x94D049BB133111EB) & _MASK
        seed ^= seed >> 31
    return seed >> 1


def says_something(segment: Segment) -> bool:
    """Whether there is anything to speak: letters or digits. Marks and symbols alone have no sound here."""
    said = any(char.isalnum() for char in segment.text) or any(span.phonemes is not None for span in segment.spans)
    return said and bool(spoken_words(segment))


@dataclass(frozen=True)
class Model:
    """What all utterances of an engine share."""

    config: CosyVoiceConfig
    tokenizer: TextTokenizer
    settings: StreamingConfig
    script: Script | None = None


class Talk:
    """See the module. ``run`` is what the language model is at, ``passages`` what waits to become sound.

    ``started_run``: the decoder knows the run, whose draws have ``run_seed``; ``drawn``: what counts as drawn since.
    """

    def __init__(self, key: UtteranceKey, params: SynthesisParams, model: Model) -> None:
        self.key = key
        self.params = params
        self.voice: VoiceState | None = None
        self.passages: deque[Passage] = deque()
        self.run: ClauseRun | InterleavedRun | None = None
        self.ended = False  # no more text comes
        self.text_seen = self.speakable = False
        self.truncated: str | None = None
        self.started_run = False
        self.run_seed = 0
        self.drawn: list[int] = []
        self.script: tuple[int, ...] = ()
        self._model = model
        self._request: Request | None = None
        self._segments: deque[Segment] = deque()
        self._runs_begun = self._run_index = self._passages_begun = self._attempt = 0
        self._carried: deque[tuple[list[int], list[int]]] = deque()  # text and speech of earlier runs
        self._run_text: list[int] = []
        self._run_closes = False
        self._run_start = 0  # token of the passage
        self._raw: list[int] = []  # speech ids of the run, dropped silence included
        self._kept: list[int] = []  # tokens of the passage after each of them
        self._guard = TokenGuard(frozenset())
        self._words: list[tuple[int, tuple[SpokenWord, ...]]] = []  # of the run, by text ids that must be read first
        self._words_told = 0
        self._spaced = False  # the text so far ends where a space belongs before the next word

    # -- text ---------------------------------------------------------------------------------------------------------

    def add(self, segment: Segment) -> None:
        self.text_seen = True
        if self.truncated is None and says_something(segment):
            self.speakable = True
            self._segments.append(segment)
            self._feed_interleaved()

    def end(self) -> None:
        self.ended = True
        self._feed_interleaved()
        self._close_if_over()

    def use(self, voice: VoiceState, request: Request) -> None:
        self.voice = voice
        self._request = request

    @property
    def request(self) -> Request:
        assert self._request is not None
        return self._request

    @property
    def _interleaved(self) -> bool:
        return self._model.settings.text_mode is TextMode.INTERLEAVED

    @property
    def due(self) -> Passage | None:
        """The passage whose next chunk can become sound."""
        head = self.passages[0] if self.passages else None
        return head if head is not None and head.due is not None else None

    @property
    def ahead_tokens(self) -> int:
        """Tokens that wait to become sound."""
        return sum(passage.waiting_tokens for passage in self.passages)

    def _open_passage(self) -> Passage | None:
        return self.passages[-1] if self.passages and not self.passages[-1].closed else None

    @property
    def may_begin(self) -> bool:
        """Whether there is text for a run, and not too much sound to make before it."""
        return bool(self._segments) and (len(self.passages) < 2 or self._open_passage() is not None)

    @property
    def waits(self) -> bool:
        """Whether anything is left to say of the text that came."""
        return bool(self._segments) or self.run is not None or bool(self.passages)

    @property
    def only_last_unfed(self) -> bool:
        """Whether all that the network lacks is the id that was drawn last."""
        run = self.run
        if run is None or not self.started_run or not self._raw or run.fills:
            return False
        return len(run.unfed) == 1 and run.unfed[0][0] is Kind.SPEECH

    # -- runs ---------------------------------------------------------------------------------------------------------

    def begin_run(self) -> None:
        """Turn the next text into a run. Raises TextTooLong."""
        passage = self._passage()
        self._run_index = self._runs_begun
        self._attempt = 0
        self._runs_begun += 1
        self._run_start = len(passage.tokens)
        self._words = []
        self._run_text = []
        self._run_closes = False
        passage.clock.begin(self._run_start)
        if not self._interleaved:
            segment = self._segments.popleft()
            self._read(passage, segment)
            self._run_closes = segment.boundary in _CLOSING or self._long(passage)
        self._new_run(passage)
        self._feed_interleaved()

    def _passage(self) -> Passage:
        passage = self._open_passage()
        if passage is None:
            assert self.voice is not None
            config = self._model.config
            params = self.params
            stretch = None if params.speed == 1.0 else Stretch(params.speed)
            seed = mixed_seed(params.seed, self._passages_begun)
            silence = SilenceFilter(SILENT_TOKENS[config.family], Compat().silence_limit_tokens)
            passage = Passage(
                SoundStream(self.voice, seed, [], stretch),
                config.flow,
                silence,
                pace=self.voice.pace,
                speed=params.speed,
                frame_samples=config.hift.frame_samples,
                stride=self._model.settings.stride_chunks,
            )
            self._passages_begun += 1
            self.passages.append(passage)
        return passage

    def _long(self, passage: Passage) -> bool:
        """Whether the passage must close where it can: its memory is bounded."""
        return 2 * len(passage.tokens) >= self._most_tokens

    @property
    def _most_tokens(self) -> int:
        """Speech tokens of a passage and, with its text, of what the language model holds."""
        settings = self._model.settings
        return min(settings.max_passage_s * self._model.config.token_rate_hz, settings.lm_tokens // 2)

    def _read(self, passage: Passage, segment: Segment) -> list[int]:
        """The ids of ``segment``, which the run speaks."""
        passage.covers(segment)
        text = segment.text.strip()
        ids = self._model.tokenizer.encode(f" {text}" if self._spaced and not is_unspaced(text[0]) else text)
        self._spaced = not is_unspaced(text[-1])
        self._run_text += ids
        self._words.append((len(self._run_text), spoken_words(segment)))
        return ids

    def _new_run(self, passage: Passage) -> None:
        """The run, from its beginning, with a seed of this attempt."""
        request = self.request
        config = self._model.config
        model = self._model
        self._raw = []
        self._kept = []
        self.drawn = []
        self._words_told = 0
        self.started_run = False
        self.run_seed = mixed_seed(self.params.seed, self._run_index, self._attempt)
        self._guard = TokenGuard(SILENT_TOKENS[config.family])
        if model.script is not None:
            self.script = tuple(model.script(self.key, self._run_index))
        self._trim_carried()
        before = [*request.prompt_text, *(i for text, _ in self._carried for i in text)]
        speech = [*request.lm_prompt, *(i for _, tokens in self._carried for i in tokens)]
        if self._interleaved:
            self.run = self._interleaved_run(before, speech)
        else:
            most = len(self.script) if self.script else MAX_RATIO * len(self._run_text)
            self.run = ClauseRun(config.lm, before, self._run_text, speech, most)
            if len(self.run.unfed) + MIN_RATIO * len(self._run_text) > model.settings.lm_tokens:
                raise TextTooLong("a piece of text without any stop is longer than the model can read; add punctuation")
        self._tell_words(passage)

    def _interleaved_run(self, before: Sequence[int], speech: Sequence[int]) -> InterleavedRun:
        config = self._model.config
        end_of_prompt = self._model.tokenizer.end_of_prompt_id
        dims, (text, each) = config.lm, config.mix_ratio
        rule = InterleaveRule(dims.speech_tokens, dims.fill_id, dims.eos_id, text, each, MAX_RATIO)
        cut = before.index(end_of_prompt) + 1 if config.family == V3 and end_of_prompt in before else 0
        run = InterleavedRun(dims, Interleave(rule, before[:cut], before[cut:], speech, Compat()))
        run.push(self._run_text)  # there is some if the run is drawn again
        if self._run_closes:
            run.end()
        return run

    def _trim_carried(self) -> None:
        """Older runs are forgotten first."""
        settings = self._model.settings
        text = 0 if self._interleaved else len(self._run_text)  # how much of it came by now is a matter of time
        prompt = len(self.request.prompt_text) + len(self.request.lm_prompt) + (1 + MIN_RATIO) * text
        room = settings.lm_tokens // 2 - prompt

        def carried() -> int:
            return sum(len(speech) for _, speech in self._carried)

        while self._carried and (
            carried() > settings.context_tokens or carried() + sum(len(text) for text, _ in self._carried) > room
        ):
            self._carried.popleft()

    def _feed_interleaved(self) -> None:
        """Words that came go to the run, up to the end of its passage."""
        run = self.run
        if not isinstance(run, InterleavedRun):
            return
        passage = self.passages[-1]
        while self._segments and not self._run_closes:
            segment = self._segments.popleft()
            run.push(self._read(passage, segment))
            # By text, not by speech: how much was spoken when this word came is a matter of time.
            expected = len(self._run_text) * _SPEECH_PER_TEXT
            stops = segment.text.rstrip().endswith(_SENTENCE_ENDS) and 2 * expected >= self._most_tokens
            self._run_closes = segment.boundary in _CLOSING or stops or expected >= self._most_tokens
        if self.ended and not self._segments:
            self._run_closes = True
        if self._run_closes:
            run.end()
        self._tell_words(passage)

    def _tell_words(self, passage: Passage) -> None:
        """Words that the language model has read by now go to the clock."""
        run = self.run
        read = run.read if isinstance(run, InterleavedRun) else len(self._run_text)
        while self._words_told < len(self._words) and self._words[self._words_told][0] <= read:
            passage.clock.add(self._words[self._words_told][1], len(passage.tokens))
            self._words_told += 1

    # -- ids ----------------------------------------------------------------------------------------------------------

    def forced(self, steps: int) -> tuple[int, ...]:
        """What the next draws must say, if there is a script."""
        return self.script[len(self._raw) : len(self._raw) + steps]

    @property
    def last_id(self) -> int:
        return self._raw[-1]

    def record_fills(self) -> list[int]:
        """Ids that count as drawn before the next one is."""
        assert self.run is not None
        fills = self.run.fills
        self.run.fills = []
        self.drawn += fills
        return fills

    def take(self, ids: Sequence[int]) -> None:
        """Drawn ids, in order. Nonsense makes the run begin again or the sound end."""
        for token in ids:
            if self.run is None or not self._take(self.passages[-1], self.run, token):
                return

    def _take(self, passage: Passage, run: ClauseRun | InterleavedRun, token: int) -> bool:
        """One id. False if the run is over, or another one has begun."""
        if token < 0:
            return self._trip("broken_scores", len(self._raw))
        try:
            sound = run.take(token)
        except SynthesisFailed:
            return self._trip("stray_id", len(self._raw))
        self.drawn.append(token)
        if sound:
            self._raw.append(token)
            passage.add(token)
            self._kept.append(len(passage.tokens))
            trip = None if self.script else self._guard.see(token)
            if trip is not None:
                return self._trip(trip.reason, trip.keep_tokens)
        self._tell_words(passage)
        if run.done and not self._raw and self._may_redraw(passage):
            return self._redraw(passage)
        if run.done and not (run.truncated and not self.script):
            self._end_run(passage)
        elif run.done or len(passage.tokens) >= self._model.settings.max_passage_s * self._model.config.token_rate_hz:
            self._cut("no_end_of_speech", len(passage.tokens))
        return not run.done

    def out_of_room(self) -> None:
        """The language model's memory is full."""
        self._cut("no_end_of_speech", len(self.passages[-1].tokens))

    def _end_run(self, passage: Passage) -> None:
        passage.clock.finish(len(passage.tokens))
        self._carried.append((self._run_text, self._raw))
        self.run = None
        if self._run_closes:
            passage.closed = passage.ended = True
        self._close_if_over()

    def _close_if_over(self) -> None:
        passage = self._open_passage()
        if self.ended and not self._segments and self.run is None and passage is not None:
            passage.closed = passage.ended = True

    def _trip(self, reason: str, keep_raw: int) -> bool:
        """Nonsense. Draw the run again if none of it may have been heard, else end the sound while it was well."""
        passage = self.passages[-1]
        if self._may_redraw(passage):
            return self._redraw(passage)
        self._cut(reason, self._kept[keep_raw - 1] if keep_raw else self._run_start)
        return False

    def _may_redraw(self, passage: Passage) -> bool:
        return self._attempt < self._model.settings.retries and passage.used_tokens() <= self._run_start

    def _redraw(self, passage: Passage) -> bool:
        self._attempt += 1
        passage.rewind(self._run_start)
        self._new_run(passage)
        return False

    def _cut(self, reason: str, keep: int) -> None:
        passage = self.passages[-1]
        passage.cut(keep)
        passage.clock.finish(len(passage.tokens))
        passage.closed = passage.ended = True
        self.run = None
        self.truncated = reason
        self.ended = True
        self._segments.clear()

    # -- sound --------------------------------------------------------------------------------------------------------

    def leave_silent(self) -> bool:
        """A passage at the front that ended without a token has no sound: it is left out. True if there was one."""
        head = self.due
        if head is not None and head.due is not None and head.due.final and not head.tokens:
            self.passages.popleft()
            return True
        return False
