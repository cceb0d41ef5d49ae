"""The voices of one engine, and what is computed once for each and shared by all who speak with it.

Owns the trimmed flow prompt (so that the first chunk boundary comes early), its pages in the flow's memory, and the
keys and values of the prompt's text. Voices come from the model directory and from a folder of stored ones, which is
looked at again for every request. It must not know utterances beyond how many of them hold a voice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cosyvoice.chunks import Item, Kind, trimmed_prompt
from tts_worker.engine.cosyvoice.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.enrol import Speaker
from tts_worker.engine.cosyvoice.flow.model import Flow
from tts_worker.engine.cosyvoice.flow.stream import FlowPool, FlowState
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.engine.streaming.alignment import pace_of
from tts_worker.engine.streaming.decode import Decoder, Prefix
from tts_worker.engine.streaming.enrolled_voices import EnrolledVoices
from tts_worker.engine.streaming.lanes import Lane
from tts_worker.errors import UnknownVoice
from tts_worker.voicepack.voice_file import Voice, load_voice, stored_voices


@dataclass
class VoiceState:
    """One voice, ready or on its way. ``prompt`` and ``prompt_mel [2P, mel]`` are the trimmed flow prompt; ``spk
    [1, mel]`` its condition; ``flow`` what of the prompt the flow has computed."""

    name: str
    speaker: Speaker
    prompt: tuple[int, ...]
    prompt_mel: Tensor
    spk: Tensor
    pace: float
    flow: FlowState | None = None
    prefixes: dict[tuple[int, ...], Prefix] = field(default_factory=dict)
    users: int = 0
    used_at: int = 0

    def request(self, instruct: str | None) -> Request:
        """What comes before the text. Raises InvalidRequest where the voice cannot take an instruction."""
        return self.speaker.request("", instruction=instruct or "")


class VoiceBook:
    """All voices by name. ``stored``: a folder of voices; ``enrolled``: enrolled voices, which are not
    among ``names``; ``cached``: so many keep their prompt in memory unused."""

    def __init__(
        self,
        config: CosyVoiceConfig,
        tokenizer: TextTokenizer,
        voices: Mapping[str, Voice],
        *,
        stored: Path | None,
        first_tokens: int,
        cached: int,
        enrolled: EnrolledVoices | None = None,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._stored = stored
        self._enrolled = enrolled
        self._first_tokens = first_tokens
        self._cached = cached
        self._fixed = {name: Speaker(voice, config, tokenizer) for name, voice in voices.items()}
        self._states: dict[str, VoiceState] = {}
        self._clock = 0

    @property
    def names(self) -> tuple[str, ...]:
        stored = [name for name in stored_voices(self._stored) if name not in self._fixed] if self._stored else []
        return (*self._fixed, *stored)

    def __contains__(self, name: str) -> bool:
        return name in self.names or (self._enrolled is not None and self._enrolled.get(name) is not None)

    @property
    def ready(self) -> int:
        """Voices whose prompt is in memory."""
        return sum(state.flow is not None for state in self._states.values())

    def get(self, name: str, flow: Flow, lane: Lane) -> VoiceState:
        """The voice, read from disk if need be. Who gets it counts as a user until ``leave``.

        Raises UnknownVoice, also for one that was removed from the folder, and BundleError for one that is damaged.
        """
        enrolled = self._enrolled.get(name) if self._enrolled is not None else None
        stored = name not in self._fixed and enrolled is None
        if stored and (self._stored is None or name not in stored_voices(self._stored)):
            self._forget(name)
            raise UnknownVoice(f'there is no voice "{name[:64]}"; there are: {", ".join(self.names[:20]) or "none"}')
        state = self._states.get(name)
        if state is None:
            speaker = self._fixed.get(name)
            if enrolled is not None:
                speaker = Speaker(enrolled, self._config, self._tokenizer)
            elif speaker is None:
                assert self._stored is not None
                speaker = Speaker(load_voice(self._stored, name), self._config, self._tokenizer)
            state = self._states[name] = self._build(name, speaker, flow, lane)
        self._clock += 1
        state.users = state.users + 1
        state.used_at = self._clock
        return state

    def leave(self, state: VoiceState) -> None:
        state.users -= 1

    def _forget(self, name: str) -> None:
        """A stored voice is gone from the folder: nobody new gets it; who speaks with it goes on."""
        state = self._states.get(name)
        if state is not None and not state.users:
            state.used_at = 0  # the first to be evicted

    def _build(self, name: str, speaker: Speaker, flow: Flow, lane: Lane) -> VoiceState:
        config = self._config.flow
        voice = speaker.voice
        request = speaker.request("")
        drop = trimmed_prompt(len(request.flow_prompt), config.chunk_tokens, self._first_tokens)
        prompt = request.flow_prompt[drop:]
        ratio = config.frames_per_token
        mel = request.prompt_mel[drop * ratio : len(request.flow_prompt) * ratio]
        with lane, torch.inference_mode():
            spk = flow.speaker(request.embedding[None].to(lane.device))
            prompt_mel = mel.reshape(-1, config.mel).to(lane.device)
        return VoiceState(name, speaker, prompt, prompt_mel, spk, pace_of(voice.prompt_text, len(voice.tokens)))

    # -- what is computed once ----------------------------------------------------------------------------------------

    def missing(self, state: VoiceState) -> bool:
        """Whether ``prepare`` has anything left to do."""
        return state.flow is None or state.flow.tokens < self._shareable(state)

    def missing_pages(self, state: VoiceState) -> int:
        """Pages that ``prepare`` will still take."""
        done = state.flow.tokens if state.flow is not None else 0
        return (self._shareable(state) - done) // self._config.flow.chunk_tokens

    def _shareable(self, state: VoiceState) -> int:
        """Prompt tokens of whole chunks that no generated token can change any more."""
        config = self._config.flow
        whole = (len(state.prompt) - config.lookahead_tokens) // config.chunk_tokens
        return max(0, whole) * config.chunk_tokens

    @torch.inference_mode()
    def prepare(self, state: VoiceState, pool: FlowPool, lane: Lane) -> None:
        """One piece of the work: a chunk of the prompt. Raises OutOfMemory."""
        with lane:
            if state.flow is None:
                self._make_room(pool)
                state.flow = pool.open()
            if self.missing(state):
                tokens, known, cond = window(
                    self._config, state.prompt, state.prompt_mel, state.flow.tokens, len(state.prompt)
                )
                try:
                    pool.advance([state.flow], lane.send([tokens]), [known], state.spk, cond)
                except Exception:  # half-way: nobody speaks with it yet, the next one begins anew
                    pool.close(state.flow)
                    state.flow = None
                    raise

    def _make_room(self, pool: FlowPool) -> None:
        idle = sorted((s for s in self._states.values() if not s.users), key=lambda s: s.used_at)
        while idle and self.ready >= self._cached:
            self._drop(idle.pop(0), pool)

    def shrink(self, pool: FlowPool) -> bool:
        """Give up the prompt of the unused voice that waited longest. False if there is none."""
        idle = [state for state in self._states.values() if not state.users and state.flow is not None]
        if idle:
            self._drop(min(idle, key=lambda state: state.used_at), pool)
        return bool(idle)

    def _drop(self, state: VoiceState, pool: FlowPool) -> None:
        if state.flow is not None:
            pool.close(state.flow)
        del self._states[state.name]

    def prefix(self, state: VoiceState, text: tuple[int, ...], decoder: Decoder) -> Prefix | None:
        """Keys and values of the start and ``text``, computed by whoever comes first."""
        if not text:
            return None
        prefix = state.prefixes.get(text)
        if prefix is None:
            if len(state.prefixes) >= 4:  # instructions differ from call to call
                state.prefixes.pop(next(iter(state.prefixes)))
            items: list[Item] = [(Kind.SOS, 0), *((Kind.TEXT, i) for i in text)]
            prefix = state.prefixes[text] = decoder.prefix(items)
        return prefix

    def close(self) -> None:
        self._states.clear()


def window(
    config: CosyVoiceConfig, tokens: tuple[int, ...] | list[int], mel: Tensor, start: int, end: int, chunks: int = 1
) -> tuple[list[int], int, Tensor]:
    """What the flow's next ``chunks`` from token ``start`` take of ``tokens[:end]`` and the prompt's ``mel [F, bins]``:
    ids, padded; how many of them exist; the condition ``[1, chunks * chunk_frames, bins]``."""
    flow = config.flow
    size = chunks * config.flow.chunk_tokens
    span = size + flow.lookahead_tokens
    frames = size * flow.frames_per_token
    ids = list(tokens[start : min(end, start + span)])
    first = start * flow.frames_per_token
    cond = mel[first : first + frames]
    cond = F.pad(cond, (0, 0, 0, frames - cond.shape[0]))[None]
    return [*ids, *[0] * (span - len(ids))], len(ids), cond
