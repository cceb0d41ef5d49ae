"""Cache of the voices of one engine and of what is computed once per voice.

A voice has a trimmed flow prompt (so that the first chunk boundary comes early), its pages in the flow cache, and the
keys and values of the prompt text. Voices come from the model directory, from enrollment, and from a directory of
stored voices that another thread reads again for every request, so that a slow disk does not stop the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.audio.chunks import trimmed_prompt
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool, FlowPrompt, UnpagedPool, chunk_inputs
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStream
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item
from tts_worker.engine.cosyvoice.tokens.alignment import estimate_pace
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder, Prefix
from tts_worker.engine.cosyvoice.tokens.runs import start_items
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.v1.flow import V1Flow
from tts_worker.engine.cosyvoice.voices.enrolled import EnrolledVoices
from tts_worker.engine.cosyvoice.voices.speaker import Request, Speaker
from tts_worker.engine.worker_thread import StreamFuture, WorkerThread
from tts_worker.errors import BundleError, InvalidRequest, UnknownVoice
from tts_worker.voices.files import Voice, load_voice, stored_hash, stored_voices

_MAX_PREFIXES = 4  # per voice
_MADE_UP_TOKENS = 75
_SILENT_MEL = -11.5  # the logarithm of the smallest magnitude in a mel spectrogram


class VoiceLoader:
    """Reads voices from a directory on a separate thread.

    Args:
        folder: Directory of stored voices.
        config: Configuration of the model.
        tokenizer: Text tokenizer of the model.
    """

    def __init__(self, folder: Path, config: CosyVoiceConfig, tokenizer: TextTokenizer) -> None:
        self._folder = folder
        self._config = config
        self._tokenizer = tokenizer
        self._thread = WorkerThread("tts-voices")

    def load(self, name: str, cached: Speaker | None, done: Callable[[], None]) -> StreamFuture[Speaker]:
        """Start to read the voice ``name``, or only to check that it is still the one that is ``cached``.

        A deleted voice is read as long as its files remain: for utterances that were accepted before.

        ``done`` is called on the loader's thread at the end. The result raises ``UnknownVoice`` if there is no such
        voice, and ``BundleError`` if it is damaged.
        """
        folder = self._folder
        config = self._config
        tokenizer = self._tokenizer

        def read_files(deleted: bool) -> Speaker:
            if cached is not None and cached.content_hash == stored_hash(folder, name, deleted=deleted):
                return cached
            speaker = Speaker(load_voice(folder, name, deleted=deleted), config, tokenizer)
            assert speaker.content_hash  # computed here, not on the engine thread
            return speaker

        def read() -> Speaker:
            with suppress(UnknownVoice, InvalidRequest):  # InvalidRequest: no voice can have that name
                return read_files(deleted=False)
            with suppress(UnknownVoice, InvalidRequest, BundleError, OSError):  # the files may just be removed
                return read_files(deleted=True)
            raise UnknownVoice(unknown_voice(name, stored_voices(folder)))

        future = self._thread.submit(read)
        self._thread.call(done)
        return future

    def close(self) -> None:
        """End the thread, without waiting for the disk."""
        self._thread.end()


def unknown_voice(name: str, known: list[str]) -> str:
    """Return the message of the error for an unknown voice."""
    return f'unknown voice "{name[:64]}"; available: {", ".join(known[:20]) or "none"}'


@dataclass(kw_only=True)
class VoiceState(FlowPrompt):
    """A voice in use or in the cache, with its trimmed flow prompt. ``VoiceCache.prepare`` computes it.

    Attributes:
        name: Name of the voice.
        speaker: Builds requests of the voice.
        embedding: Speaker embedding, ``[spk_embed]``.
        pace: Speech tokens per unit of text weight.
        chunk_tokens: Tokens of a chunk.
        shareable_tokens: Prompt tokens in whole chunks that do not depend on generated tokens.
        prefixes: Keys and values of prompt texts, by inputs.
        users: Utterances that use the voice, and passes that compute its prompt.
        last_used: Order of the last use, for eviction.
    """

    name: str
    speaker: Speaker
    embedding: Tensor
    pace: float
    chunk_tokens: int
    shareable_tokens: int
    prefixes: dict[tuple[Item, ...], Prefix] = field(default_factory=dict)
    users: int = 0
    last_used: int = 0

    @property
    def is_prepared(self) -> bool:
        """Whether the prompt is fully computed."""
        return self.flow is not None and self.flow.tokens >= self.shareable_tokens

    @property
    def pages_ahead(self) -> int:
        """Pages that the preparation will still take."""
        done = self.flow.tokens if self.flow is not None else 0
        return (self.shareable_tokens - done) // self.chunk_tokens

    def request(self, instruct: str | None, language: str | None = None) -> Request:
        """Return the request without text.

        Raises:
            InvalidRequest: The voice does not support instructions.
        """
        return self.speaker.request("", instruction=instruct or "", language=language)


class VoiceCache:
    """All voices by name.

    Args:
        config: Configuration of the model.
        tokenizer: Text tokenizer of the model.
        voices: Voices of the model directory, by name.
        stored: Directory of stored voices.
        first_tokens: Speech tokens before the first chunk boundary.
        cached: Unused voices whose prompt stays in memory.
        enrolled: Voices enrolled at run time. They are not among ``names``.

    Attributes:
        on_loaded: Called on another thread when the look-up of a stored voice has ended.
    """

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
        self._bundled = {name: Speaker(voice, config, tokenizer) for name, voice in voices.items()}
        made_up = {"#warm-up": _made_up_voice(config, 0), "#warm-up-prompt": _made_up_voice(config, _MADE_UP_TOKENS)}
        self._made_up = {name: Speaker(voice, config, tokenizer) for name, voice in made_up.items()}
        self.states: dict[str, VoiceState] = {}
        self._uses = 0
        self._loader: VoiceLoader | None = None
        self.on_loaded: Callable[[], None] = _do_nothing

    @property
    def names(self) -> tuple[str, ...]:
        stored = [name for name in stored_voices(self._stored) if name not in self._bundled] if self._stored else []
        return (*self._bundled, *stored)

    @property
    def uninstructed(self) -> tuple[str, ...]:
        """Speakers of the model directory that follow no instruction."""
        return tuple(name for name, speaker in self._bundled.items() if not speaker.follows_instructions)

    @property
    def warm_up_names(self) -> tuple[str, ...]:
        """A voice with a prompt and one without: their first chunks differ in length.

        Made-up voices stand in for what the model directory lacks, so that an engine starts without any voice.
        """
        kinds: dict[bool, str] = {}
        for name, speaker in (*self._bundled.items(), *self._made_up.items()):
            kinds.setdefault(len(speaker.voice.tokens) > 0, name)
        return tuple(kinds.values())

    @property
    def prepared_voices(self) -> int:
        """Number of voices with a prompt in memory."""
        return sum(state.flow is not None for state in self.states.values())

    def acquire(self, name: str) -> VoiceState | StreamFuture[Speaker]:
        """Return a voice, which counts as used until ``release``.

        A stored voice is looked up on another thread: pass the result of the future to ``acquire_loaded``.

        Raises:
            UnknownVoice: There is no such voice.
        """
        state = self.states.get(name)
        enrolled = self._enrolled.get(name) if self._enrolled is not None else None
        if enrolled is not None:
            if state is not None and state.speaker.voice is enrolled:
                return self.acquire_loaded(name, state.speaker)
            return self.acquire_loaded(name, Speaker(enrolled, self._config, self._tokenizer))
        if name in self._bundled:
            return self.acquire_loaded(name, self._bundled[name])
        if name in self._made_up:  # "#" is in no name that a client can send
            return self.acquire_loaded(name, self._made_up[name])
        if self._stored is None:
            raise UnknownVoice(unknown_voice(name, list(self._bundled)))
        if self._loader is None:
            self._loader = VoiceLoader(self._stored, self._config, self._tokenizer)
        return self._loader.load(name, None if state is None else state.speaker, self.on_loaded)

    def acquire_loaded(self, name: str, speaker: Speaker) -> VoiceState:
        """Return the voice of ``speaker``, which counts as used until ``release``."""
        state = self.states.get(name)
        if state is not None and state.speaker is not speaker and state.speaker.content_hash != speaker.content_hash:
            self._retire_replaced(state)
            state = None
        if state is None:
            state = self.states[name] = self._build(name, speaker)
        self._uses += 1
        state.users += 1
        state.last_used = self._uses
        return state

    def release(self, state: VoiceState) -> None:
        """Return a voice that was acquired."""
        state.users -= 1
        if not state.users and state.flow is None and self.states.get(state.name) is state:
            del self.states[state.name]  # nothing is computed that could be used again

    def expire(self, name: str) -> None:
        """Evict a removed voice first. Utterances that use it continue."""
        state = self.states.get(name)
        if state is not None and not state.users:
            state.last_used = 0

    def _retire_replaced(self, state: VoiceState) -> None:
        """Rename a voice that was deleted and stored again with other content, until its utterances have ended."""
        del self.states[state.name]
        if state.users or state.flow is not None:
            state.name = f"{state.name}#{self._uses}"  # "#" is in no name of a voice
            state.last_used = 0
            self.states[state.name] = state

    def _build(self, name: str, speaker: Speaker) -> VoiceState:
        config = self._config.flow
        voice = speaker.voice
        request = speaker.request("")
        prompt_text = speaker.tokenizer.spell(voice.prompt_text)
        pace = estimate_pace(prompt_text, len(voice.tokens), self._config.pace, self._config.token_rate_hz)
        prompt = request.flow_prompt
        mel = request.prompt_mel
        shareable_tokens = 0
        if not config.has_independent_chunks:  # otherwise nothing is computed before the speech
            drop = trimmed_prompt(len(prompt), config.chunk_tokens, self._first_tokens)
            ratio = config.frames_per_token
            mel = mel[drop * ratio : len(prompt) * ratio]
            prompt = prompt[drop:]
            whole_chunks = max(0, (len(prompt) - config.lookahead_tokens) // config.chunk_tokens)
            shareable_tokens = whole_chunks * config.chunk_tokens
        return VoiceState(
            name=name,
            speaker=speaker,
            prompt=prompt,
            prompt_mel=mel.reshape(-1, config.mel),
            embedding=request.embedding,
            pace=pace,
            chunk_tokens=config.chunk_tokens,
            shareable_tokens=shareable_tokens,
        )

    # -- shared computations -----------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prepare(
        self, state: VoiceState, flow: Flow | V1Flow, pool: FlowPool | UnpagedPool, stream: ExecutionStream
    ) -> None:
        """Compute the next chunk of the prompt, on ``stream``.

        Raises:
            OutOfMemory: The pool has no free page.
        """
        with stream:
            if state.flow is None:
                state.spk = flow.speaker(state.embedding[None].to(stream.device))
                state.prompt_mel = state.prompt_mel.to(stream.device)
                state.flow = pool.open()
            if not state.is_prepared and isinstance(pool, FlowPool):
                tokens, known, cond = chunk_inputs(pool.flow.dims, state.prompt, state.prompt_mel, state.flow.tokens)
                try:
                    pool.advance([state.flow], stream.to_device([tokens]), [known], state.spk, cond)
                except Exception:  # the state is incomplete, and unused so far: start again with the next call
                    pool.close(state.flow)
                    state.flow = None
                    raise

    def evict_surplus(self, pool: FlowPool | UnpagedPool) -> None:
        """Evict unused voices so that one more can be prepared."""
        idle = sorted((s for s in self.states.values() if not s.users), key=lambda s: s.last_used)
        while idle and self.prepared_voices >= self._cached:
            self._evict(idle.pop(0), pool)

    @property
    def evictable_pages(self) -> int:
        """Pages of the prompts of voices without users."""
        return sum(len(s.flow.pages) for s in self.states.values() if not s.users and s.flow is not None)

    def evict_idle(self, pool: FlowPool | UnpagedPool) -> bool:
        """Evict the least recently used voice without users. Returns False if there is none."""
        idle = [state for state in self.states.values() if not state.users and state.flow is not None]
        if idle:
            self._evict(min(idle, key=lambda state: state.last_used), pool)
        return bool(idle)

    def _evict(self, state: VoiceState, pool: FlowPool | UnpagedPool) -> None:
        if state.flow is not None:
            pool.close(state.flow)
        del self.states[state.name]

    def prefix(self, state: VoiceState, request: Request, decoder: Decoder) -> Prefix | None:
        """Return the keys and values of a sequence start with the prompt text, computed on first use."""
        if not request.prompt_text:
            return None
        items = tuple(start_items(request.prompt_text, with_speaker=request.with_speaker))
        prefix = state.prefixes.get(items)
        if prefix is None:
            if len(state.prefixes) >= _MAX_PREFIXES:  # instructions differ per request, so the cache is bounded
                state.prefixes.pop(next(iter(state.prefixes)))
            prefix = decoder.prefix(items, request.embedding if request.with_speaker else None)
            state.prefixes[items] = prefix
        return prefix

    def close(self) -> None:
        """End the thread that reads voices."""
        if self._loader is not None:
            self._loader.close()


def _made_up_voice(config: CosyVoiceConfig, tokens: int) -> Voice:
    """A voice for the warm-up, with a silent prompt of ``tokens`` or none."""
    embedding = np.ones(config.flow.spk_embed, np.float32) / np.sqrt(config.flow.spk_embed, dtype=np.float32)
    frames = config.flow.frames(tokens)
    return Voice(
        family=config.family,
        prompt_text="",
        prompt_text_ids=np.zeros(0, np.int32),
        tokens=np.zeros(tokens, np.int32),
        mel=np.full((frames, config.mel.bins), _SILENT_MEL, np.float32),
        embedding=embedding,
        seconds=tokens / config.token_rate_hz,
    )


def _do_nothing() -> None:
    """The callback of a cache whose engine is not woken."""
