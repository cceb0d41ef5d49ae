"""Chunks of tokens to sound: through the flow, then through the vocoder. See stage.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from tts_worker.audio.pcm import fade_out, to_float, to_pcm
from tts_worker.engine.streaming.lanes import Begun
from tts_worker.engine.streaming.pages import Pages
from tts_worker.engine.streaming.parts import Parts
from tts_worker.engine.streaming.passage import Passage
from tts_worker.engine.streaming.render import Mels, SoundStream, Voiced, Work
from tts_worker.engine.streaming.stage import Spent, StageFault, running_mean
from tts_worker.engine.streaming.utterance import Utterance
from tts_worker.errors import OutOfMemory

_END_FADE_SAMPLES = 480  # 20 ms, where speech was cut


@dataclass(frozen=True)
class _Sound:
    utterance: Utterance
    passage: Passage
    work: Work


_Sounds = tuple[_Sound, ...]


class SoundStage:
    """Where the flow has a lane to itself, it is at the next chunk while the vocoder is at this one."""

    def __init__(self, parts: Parts, pages: Pages, batch: int, spent: Spent, freed: Callable[[], None]) -> None:
        self._renderer = parts.renderer
        self._pages = pages
        self._batch = batch
        self._spent = spent
        self._freed = freed
        self._one_lane = parts.lanes.flow is parts.lanes.vocoder
        self._flow: tuple[_Sounds, Begun[Mels]] | None = None
        self._between: deque[tuple[_Sounds, Mels]] = deque()
        self._vocoder: tuple[_Sounds, Mels, Voiced] | None = None
        self._left: list[SoundStream] = []  # whose listeners went while the flow was at them
        self._began_s = 0.0

    @property
    def busy(self) -> bool:
        return self._flow is not None or self._vocoder is not None or bool(self._between)

    @property
    def has_room(self) -> bool:
        """Whether ``launch`` may be called."""
        return not self.busy if self._one_lane else self._flow is None

    @property
    def has_frames(self) -> bool:
        """Whether ``vocode`` must be called."""
        return bool(self._between) and self._vocoder is None

    @property
    def expected_s(self) -> float:
        """When what is in flight will have landed, by what it took until now."""
        return self._began_s + self._spent.chunk_s

    def launch(self, wanting: Sequence[Utterance], everyone: Sequence[Utterance]) -> bool:
        """Render the due chunks of the first of ``wanting``, the most urgent first. False if there is no memory for
        any of them now. Raises StageFault, and OutOfMemory if there never will be."""
        self._began_s = perf_counter()
        members: list[Utterance] = []
        works: list[Work] = []
        pages = 0
        for utterance in wanting:
            passage = utterance.talk.due
            if passage is None or passage.due is None:
                continue
            work = Work(passage.stream, passage.due, tuple(passage.tokens[: passage.due.known]))
            try:
                fits = self._fits(utterance, work, everyone, pages)
            except OutOfMemory as problem:
                if members:
                    break  # next time it is the first
                raise StageFault([utterance], problem) from problem
            if fits:
                members.append(utterance)
                works.append(work)
                pages += self._renderer.pages(work)
            if len(members) == self._batch or (members and members[0].alone):
                break
        if not members:
            return False
        sounds = tuple(_Sound(u, u.talk.passages[0], work) for u, work in zip(members, works, strict=True))
        for utterance in members:
            utterance.rendering = True
        self._flow = sounds, self._renderer.flow(works)
        if self._one_lane:  # what the vocoder does comes after it, in the order of the lane
            self._land_flow()
            self.vocode()
        return True

    def _fits(self, utterance: Utterance, work: Work, everyone: Sequence[Utterance], taken: int) -> bool:
        """Whether there are pages for ``work`` besides those ``taken``. Raises OutOfMemory."""
        needed = self._renderer.pages(work) + taken
        return self._pages.for_sound(utterance, needed, everyone, begins=work.stream.flow is None)

    def _land_flow(self) -> None:
        assert self._flow is not None
        (sounds, begun), self._flow = self._flow, None
        for sound in sounds:
            sound.utterance.rendering = False
        try:
            mels = begun.result()
        except Exception as problem:
            raise StageFault([sound.utterance for sound in sounds], problem, self._recover) from problem
        finally:
            while self._left:  # not before: the thread may still take pages for them
                self._renderer.close(self._left.pop())
        for sound, mel in zip(sounds, mels.frames, strict=True):  # the next chunk may begin
            sound.passage.done(sound.work.chunk)
            sound.utterance.coming_samples = self._renderer.samples(mel)
        self._between.append((sounds, mels))

    def vocode(self) -> None:
        """Give the vocoder what the flow made. Raises StageFault."""
        sounds, mels = self._between.popleft()
        there = [(sound, mel) for sound, mel in zip(sounds, mels.frames, strict=True) if not sound.utterance.gone]
        if not there:
            return
        sounds = tuple(sound for sound, _ in there)
        mels = replace(mels, frames=[mel for _, mel in there])
        try:
            voiced = self._renderer.vocode([sound.work for sound in sounds], mels.frames)
        except Exception as problem:
            raise self._unvoiced(sounds, mels, problem) from problem
        self._vocoder = sounds, mels, voiced

    def _unvoiced(self, sounds: _Sounds, mels: Mels, problem: Exception) -> StageFault:
        """The vocoder failed, and nothing has changed: whoever was not alone is given to it again by himself."""
        if len(sounds) > 1:
            again = [((sound,), replace(mels, frames=[mel])) for sound, mel in zip(sounds, mels.frames, strict=True)]
            self._between.extendleft(reversed(again))
        return StageFault([sound.utterance for sound in sounds], problem)

    def land(self, *, block: bool) -> None:
        """Hand over sound that has arrived. Raises StageFault."""
        if self._vocoder is None:
            # Not while the chunk before waits for the vocoder: it is heard first, whatever the flow has to tell.
            if self._flow is not None and not self._between and (block or self._flow[1].over):
                self._land_flow()
            return
        sounds, mels, voiced = self._vocoder
        if not (block or voiced.ready):
            return
        self._vocoder = None
        try:
            pieces = [part.pcm() for part in voiced.parts]
            flow_ms = mels.ms
            vocoder_ms = voiced.ms
        except Exception as problem:
            raise self._unvoiced(sounds, mels, problem) from problem
        self._spent.flow_ms += flow_ms
        self._spent.vocoder_ms += vocoder_ms
        self._spent.chunk_s = running_mean(self._spent.chunk_s, (flow_ms + vocoder_ms) / 1000)
        shared_by = len(sounds)
        for sound, pcm, after in zip(sounds, pieces, voiced.after, strict=True):
            if not sound.utterance.gone:
                sound.work.stream.hift = after
                self._hand_over(sound, pcm, flow_ms / shared_by, vocoder_ms / shared_by)

    def _hand_over(self, sound: _Sound, pcm: bytes, flow_ms: float, vocoder_ms: float) -> None:
        utterance = sound.utterance
        passage = sound.passage
        chunk = sound.work.chunk
        if passage.base_sample is None:
            passage.base_sample = utterance.output.rendered_samples
        words = passage.words(chunk)
        if chunk.final and utterance.talk.truncated is not None and len(utterance.talk.passages) == 1:
            pcm = to_pcm(fade_out(to_float(pcm), _END_FADE_SAMPLES))
        utterance.output.render(
            pcm,
            words,
            text_range=passage.text_range,
            wall_ms=utterance.lm_ms + flow_ms + vocoder_ms,
            stages_ms=(("lm", utterance.lm_ms), ("flow", flow_ms), ("vocoder", vocoder_ms)),
        )
        utterance.lm_ms = 0.0
        utterance.chunks += 1
        utterance.alone = False
        utterance.coming_samples = 0
        if chunk.final:
            self._renderer.close(passage.stream)
            utterance.talk.passages.popleft()
            self._freed()

    def close(self, stream: SoundStream) -> None:
        """Nobody listens to ``stream`` any more. What the flow is at is let go of when it is through."""
        if self._flow is not None and any(sound.work.stream is stream for sound in self._flow[0]):
            self._left.append(stream)
        else:
            self._renderer.close(stream)

    def _recover(self, utterance: Utterance) -> None:
        """After a fault: the flow's memory is made anew by the next pass."""
        if utterance.talk.passages:
            self._renderer.recover(utterance.talk.passages[0].stream)
