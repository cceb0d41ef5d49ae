"""A voice of CosyVoice as the speaker of one model: it builds the inputs of the networks.

This module owns the prompt format of the models: ``<|endofprompt|>``, the system prompt of CosyVoice3, and which ids
and audio each mode needs. Users write plain instructions, or names of those that the models were trained with:
``instruct: cantonese`` gives the same prompt as the Chinese sentence would.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cosyvoice.bundle.config import V1, V3, CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.tensor_files import read_pickled
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer, WhisperTokenizer
from tts_worker.errors import BundleError, InvalidRequest
from tts_worker.front_end.instruction import END_OF_PROMPT, SYSTEM_PROMPT
from tts_worker.text.language import primary_tag
from tts_worker.voices.files import Voice

_LOOSE_FRAMES = 6.0  # 70 ms

DIALECTS = {
    "cantonese": "广东话",
    "dongbei": "东北话",
    "gansu": "甘肃话",
    "guizhou": "贵州话",
    "henan": "河南话",
    "hubei": "湖北话",
    "hunan": "湖南话",
    "jiangxi": "江西话",
    "minnan": "闽南话",
    "ningxia": "宁夏话",
    "shaanxi": "陕西话",
    "shandong": "山东话",
    "shanghai": "上海话",
    "shanxi": "山西话",
    "sichuan": "四川话",
    "tianjin": "天津话",
    "yunnan": "云南话",
}
EMOTIONS = {"angry": "生气", "fearful": "恐惧", "happy": "开心", "sad": "伤心", "surprised": "惊讶"}
MANNERS = {
    "fast": "请用尽可能快地语速说一句话。",
    "slow": "请用尽可能慢地语速说一句话。",
    "loud": "请尽可能非常大声地说一句话。",
    "soft": "请非常轻声地说一句话。",
}


_STYLES = {
    word: name
    for name, words in {
        "angry": "angry angrily annoyed frustrated",
        "fearful": "fearful scared anxious anxiously nervous nervously panicked worried",
        "happy": "happy happily cheerful cheerfully joyful joyfully delighted elated excited excitedly upbeat",
        "sad": "sad sadly sorrowful dejected disappointed melancholic crying",
        "surprised": "surprised amazed",
        "soft": "whisper whispers whispering whispered",
    }.items()
    for word in words.split()
}
"""Words of a style, by the instruction that the models were trained with."""


class Mode(str, Enum):
    """How a voice is used."""

    ZERO_SHOT = "zero_shot"  # continue the prompt: closest to the voice
    CROSS_LINGUAL = "cross_lingual"  # timbre only: for other languages, and without a transcript
    INSTRUCT = "instruct2"  # timbre plus an instruction: an accent, an emotion
    SFT = "sft"  # a speaker the model was fine-tuned on


@dataclass(frozen=True)
class Request:
    """Input of one utterance; ``prompt_mel [P, mel]`` and ``embedding [spk_embed]`` are float32."""

    text: tuple[int, ...]
    embedding: Tensor
    prompt_text: tuple[int, ...] = ()
    lm_prompt: tuple[int, ...] = ()  # speech tokens of the prompt, for the language model
    flow_prompt: tuple[int, ...] = ()  # speech tokens of the prompt, for the flow; belong to ``prompt_mel``
    prompt_mel: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    with_speaker: bool = False  # whether the language model gets the embedding, too (CosyVoice-300M)


def prompt_ids(tokenizer: TextTokenizer, config: CosyVoiceConfig, transcript: str) -> list[int]:
    """Ids of the prompt text in zero-shot mode."""
    return [*_system_ids(tokenizer, config), *tokenizer.encode(transcript)] if transcript else []


def instruct_ids(tokenizer: TextTokenizer, config: CosyVoiceConfig, instruction: str) -> list[int]:
    """Ids of the prompt text in instruct mode: the instruction or the preset it names, then the end-of-prompt token."""
    instruction = instruction.replace(END_OF_PROMPT, "").removeprefix(SYSTEM_PROMPT).strip()
    instruction = instruction_of(instruction, config.family)
    if config.family == V1:  # no special token: the mark was trained as text
        return tokenizer.encode(f"{instruction}{END_OF_PROMPT}")
    if config.family == V3:
        instruction = f"{SYSTEM_PROMPT} {instruction}".strip()
    return [*tokenizer.encode(instruction), tokenizer.end_of_prompt_id]


def instruction_of(text: str, family: str) -> str:
    """Return the instruction that ``text`` names, or ``text``."""
    name = text.strip().lower()
    if name in DIALECTS:
        return f"请用{DIALECTS[name]}表达。" if family == V3 else f"用{DIALECTS[name]}说这句话"
    if name in EMOTIONS:
        return f"请非常{EMOTIONS[name]}地说一句话。" if family == V3 else f"用{EMOTIONS[name]}的语气说这句话"
    return MANNERS.get(name, text)


def style_instruction(style: str) -> str:
    """Return the instruction for a style in a text: one that the models know, else a sentence with its words."""
    found = (_STYLES[word] for word in re.findall("[a-z]+", style.lower()) if word in _STYLES)
    return next(found, f"Speak in this style: {style}.")


def _language_ids(tokenizer: WhisperTokenizer, language: str | None) -> list[int]:
    return tokenizer.language_ids(primary_tag(language)) if language else []


def _system_ids(tokenizer: TextTokenizer, config: CosyVoiceConfig) -> list[int]:
    return instruct_ids(tokenizer, config, "") if config.family == V3 else []


@dataclass(frozen=True)
class Speaker:
    """A voice that builds requests for one model.

    Raises:
        BundleError: The voice belongs to another model.
    """

    voice: Voice
    config: CosyVoiceConfig
    tokenizer: TextTokenizer

    def __post_init__(self) -> None:
        config = self.config
        voice = self.voice
        if voice.family != config.family:
            raise BundleError(
                f"the voice was made for {voice.family}, not {config.family}; add it again with this model"
            )
        voice.check(
            text_rows=config.lm.text_vocab,
            speech_tokens=config.flow.vocab,
            mel_bins=config.mel.bins,
            spk_size=config.flow.spk_embed,
            frames_per_token=config.flow.frame_of(1),
            token_rate_hz=config.token_rate_hz,
            # The mel of CosyVoice-300M is not cut to its speech tokens.
            tolerance_frames=_LOOSE_FRAMES if config.family == V1 else config.flow.frame_of(1),
        )

    @cached_property
    def content_hash(self) -> str:
        """``Voice.content_hash``, computed once."""
        return self.voice.content_hash

    @property
    def mode(self) -> Mode:
        """The default mode of the voice."""
        if not len(self.voice.tokens):
            return Mode.SFT
        return Mode.ZERO_SHOT if len(self.voice.prompt_text_ids) else Mode.CROSS_LINGUAL

    @property
    def follows_instructions(self) -> bool:
        """Whether there is an instruct mode for the voice: it needs prompt audio, except with CosyVoice-300M."""
        return self.config.family == V1 or len(self.voice.tokens) > 0

    def request(
        self,
        text: str,
        *,
        mode: Mode | None = None,
        instruction: str = "",
        language: str | None = None,
        allow_special: bool = False,
    ) -> Request:
        """Build the request for ``text``, which may be empty if it is streamed in later.

        Args:
            text: The text to speak.
            mode: None selects instruct mode if there is an instruction, otherwise the default mode of the voice.
            instruction: Style instruction; instruct mode only.
            language: BCP-47 tag of the text. CosyVoice-300M announces it in cross-lingual mode.
            allow_special: Encode special tokens in ``text`` instead of reading them as characters.

        Raises:
            InvalidRequest: The voice does not support the mode.
        """
        mode = mode or (Mode.INSTRUCT if instruction else self.mode)
        voice = self.voice
        is_v1 = self.config.family == V1
        is_possible = self.follows_instructions if mode is Mode.INSTRUCT else mode is Mode.SFT or len(voice.tokens)
        if not is_possible:
            raise InvalidRequest(f"this voice has no prompt audio, so it cannot speak in {mode.value} mode")
        if mode is Mode.ZERO_SHOT and not len(voice.prompt_text_ids):
            raise InvalidRequest(
                "this voice has no transcript, so it cannot speak in zero_shot mode; try cross_lingual"
            )
        if bool(instruction) != (mode is Mode.INSTRUCT):
            raise InvalidRequest("instruct2 mode requires an instruction, and an instruction requires instruct2 mode")
        has_prompt = mode is not Mode.SFT
        ids = tuple(self.tokenizer.encode(text, allow_special=allow_special))
        if mode is Mode.ZERO_SHOT:
            prompt_text = voice.prompt_text_ids.tolist()
        elif mode is Mode.INSTRUCT:
            prompt_text = instruct_ids(self.tokenizer, self.config, instruction)
        elif isinstance(self.tokenizer, WhisperTokenizer):
            prompt_text = _language_ids(self.tokenizer, language) if mode is Mode.CROSS_LINGUAL else []
        else:
            prompt_text = _system_ids(self.tokenizer, self.config)
        tokens = tuple(voice.tokens.tolist())
        return Request(
            text=ids,
            embedding=_tensor(voice.embedding),
            prompt_text=tuple(prompt_text),
            lm_prompt=tokens if mode is Mode.ZERO_SHOT else (),
            flow_prompt=tokens if has_prompt else (),
            prompt_mel=_tensor(voice.mel) if has_prompt else torch.zeros(0, self.config.mel.bins),
            # An instruction describes the speaker: the language model would rather follow the embedding.
            with_speaker=is_v1 and mode is not Mode.INSTRUCT,
        )


def _tensor(array: Floats) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))


def bundled_voices(file: Path, config: CosyVoiceConfig) -> dict[str, Voice]:
    """Read the speakers of a ``spk2info.pt`` (embedding only or with a full prompt) as voices that can be stored.

    Reads the file without executing code from it.

    Raises:
        BundleError: A speaker is malformed; names it.
    """
    speakers = read_pickled(file)
    if not isinstance(speakers, dict):
        raise BundleError(f"{file}: is not a table of speakers")
    voices = {}
    for name, entry in speakers.items():
        try:
            embedding = entry["embedding"] if "embedding" in entry else entry["flow_embedding"]
            ids, tokens = (entry.get(key, torch.zeros(0)) for key in ("prompt_text", "flow_prompt_speech_token"))
            mel = entry.get("prompt_speech_feat", torch.zeros(0, config.mel.bins))
            voice = Voice(
                family=config.family,
                prompt_text="",
                prompt_text_ids=ids.reshape(-1).numpy().astype(np.int32),
                tokens=tokens.reshape(-1).numpy().astype(np.int32),
                mel=mel.reshape(-1, config.mel.bins).float().numpy(),
                embedding=embedding.reshape(-1).float().numpy(),
                seconds=tokens.numel() / config.token_rate_hz,
            )
        except (TypeError, KeyError, AttributeError, RuntimeError):
            raise BundleError(f"{file}: the speaker {str(name)[:80]!r} has an unknown format") from None
        if not np.isfinite(voice.mel).all() or not np.isfinite(voice.embedding).all():
            raise BundleError(f"{file}: the speaker {str(name)[:80]!r} contains values that are not finite")
        voices[str(name)] = voice
    return voices
