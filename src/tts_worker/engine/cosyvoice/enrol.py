"""Voices of CosyVoice: made from a recording, taken over from a bundle's speakers, and turned into requests.

Owns what the models want around texts: ``<|endofprompt|>``, the system prompt of CosyVoice3, which ids and sound go
where in each mode. Users write plain transcripts and instructions. It must not know which recordings are usable
(audio/prompt.py), how a voice is stored (voicepack/voice_file.py) or spoken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tts_worker.audio.decode import Recording, read_recording
from tts_worker.audio.pcm import Floats
from tts_worker.audio.prompt import usable_speech
from tts_worker.engine.cosyvoice.audio_frontend import PromptFrontend
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.compat import Compat
from tts_worker.engine.cosyvoice.config import V3, CosyVoiceConfig
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.engine.cosyvoice.tokenizer import END_OF_PROMPT, TextTokenizer
from tts_worker.engine.tensor_files import read_pickled
from tts_worker.errors import BundleError, InvalidRequest, TextTooLong
from tts_worker.voicepack.voice_file import Voice, load_voice

MAX_TRANSCRIPT_CHARS = 1000
CHARS_PER_S = (1.0, 35.0)  # of a transcript that can belong to a recording, from slow Chinese to fast English
SYSTEM_PROMPT = "You are a helpful assistant."  # CosyVoice3 was trained with it


class Mode(str, Enum):
    """How a voice is used."""

    ZERO_SHOT = "zero_shot"  # go on speaking where the prompt ends: closest to the voice
    CROSS_LINGUAL = "cross_lingual"  # only its sound: for other languages, and without a transcript
    INSTRUCT = "instruct2"  # its sound and an instruction: an accent, a mood
    SFT = "sft"  # a speaker that the model was tuned for


def enrol(bundle: Bundle, frontend: PromptFrontend, audio: Path | str | bytes | Recording, text: str) -> Voice:
    """A voice from a recording and its transcript. Silence at the ends is cut, a level far from usual corrected.

    Raises InvalidRequest with a plain message if the recording cannot make a good voice, TextTooLong, BundleError.
    """
    recording = audio if isinstance(audio, Recording) else read_recording(audio)
    notes = []
    speech, gain_db = usable_speech(recording)
    if recording.rate_hz < bundle.config.sample_rate_hz:
        notes.append(f"the audio has {recording.rate_hz} samples a second: the voice will sound duller than it could")
    if float((np.abs(recording.samples) >= 0.999).mean()) > 1e-3:
        notes.append("the audio is clipped: record it again at a lower level")
    transcript = plain_transcript(text)
    if not transcript:
        notes.append("no transcript: the voice lends its sound only (cross-lingual mode)")
    elif not CHARS_PER_S[0] <= len(transcript.replace(" ", "")) / speech.seconds <= CHARS_PER_S[1]:
        notes.append("the transcript does not look as long as the audio: are they of the same recording?")
    features = frontend.prompt(speech)
    return Voice(
        family=bundle.config.family,
        prompt_text=transcript,
        prompt_text_ids=np.array(prompt_ids(TextTokenizer.of(bundle), bundle.config, transcript), dtype=np.int32),
        tokens=features.tokens.numpy(),
        mel=features.mel.numpy(),
        embedding=features.embedding.numpy(),
        seconds=speech.seconds,
        gain_db=gain_db,
        notes=tuple(notes),
    )


def plain_transcript(text: str) -> str:
    """What was said, on one line, without the tags that the reference makes users write."""
    text = re.sub(r"\s+", " ", text.rpartition(END_OF_PROMPT)[2]).strip()
    if len(text) > MAX_TRANSCRIPT_CHARS:
        raise TextTooLong(
            f"the transcript has {len(text)} characters; a prompt of 30 s has at most {MAX_TRANSCRIPT_CHARS}"
        )
    return text


def prompt_ids(tokenizer: TextTokenizer, config: CosyVoiceConfig, transcript: str) -> list[int]:
    """The prompt text of zero-shot mode."""
    return [*_system_ids(tokenizer, config), *tokenizer.encode(transcript)] if transcript else []


def instruct_ids(tokenizer: TextTokenizer, config: CosyVoiceConfig, instruction: str) -> list[int]:
    """The prompt text of instruct mode: the instruction, and the end of prompt after it."""
    instruction = instruction.replace(END_OF_PROMPT, "").removeprefix(SYSTEM_PROMPT).strip()
    if config.family == V3:
        instruction = f"{SYSTEM_PROMPT} {instruction}".strip()
    return [*tokenizer.encode(instruction), tokenizer.end_of_prompt_id]


def _system_ids(tokenizer: TextTokenizer, config: CosyVoiceConfig) -> list[int]:
    return instruct_ids(tokenizer, config, "") if config.family == V3 else []


@dataclass(frozen=True)
class Speaker:
    """A voice, ready to be asked for requests of one model."""

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
            frames_per_token=config.flow.frames_per_token,
            token_rate_hz=config.token_rate_hz,
        )

    @classmethod
    def load(cls, bundle: Bundle, tokenizer: TextTokenizer, root: Path, name: str) -> Speaker:
        """A stored voice. Raises UnknownVoice, or BundleError if it cannot be trusted or is of another model."""
        return cls(load_voice(root, name), bundle.config, tokenizer)

    @property
    def mode(self) -> Mode:
        """What suits the voice best."""
        if not len(self.voice.tokens):
            return Mode.SFT
        return Mode.ZERO_SHOT if len(self.voice.prompt_text_ids) else Mode.CROSS_LINGUAL

    def request(
        self,
        text: str,
        *,
        mode: Mode | None = None,
        instruction: str = "",
        allow_special: bool = False,
        compat: Compat | None = None,
    ) -> Request:
        """What the networks are given to speak ``text``, which may be empty where it comes later. ``mode`` None is
        instruct if there is an instruction, else what suits the voice. Raises InvalidRequest for a mode that the voice
        cannot."""
        mode = mode or (Mode.INSTRUCT if instruction else self.mode)
        voice = self.voice
        if mode is not Mode.SFT and not len(voice.tokens):
            raise InvalidRequest(f"this voice has no prompt audio, so it cannot speak in {mode.value} mode")
        if mode is Mode.ZERO_SHOT and not len(voice.prompt_text_ids):
            raise InvalidRequest(
                "this voice has no transcript, so it cannot speak in zero_shot mode; try cross_lingual"
            )
        if bool(instruction) != (mode is Mode.INSTRUCT):
            raise InvalidRequest("an instruction and instruct2 mode need each other")
        prompted = mode is not Mode.SFT
        compat = compat or Compat()
        ids = tuple(self.tokenizer.encode(text, allow_special=allow_special))
        own_text = mode is Mode.ZERO_SHOT or (mode is Mode.INSTRUCT and compat.instruct_ignored_by_saved_voice)
        if own_text and len(voice.prompt_text_ids):
            prompt_text = voice.prompt_text_ids.tolist()
        elif mode is Mode.INSTRUCT:
            prompt_text = instruct_ids(self.tokenizer, self.config, instruction)
        elif self.config.family == V3 and compat.prompt_tag_demanded:
            prompt_text = []
            if self.tokenizer.end_of_prompt_id not in ids:
                raise InvalidRequest(f"CosyVoice3's reference demands {END_OF_PROMPT} in the text, as a special token")
        else:
            prompt_text = _system_ids(self.tokenizer, self.config)
        tokens = tuple(voice.tokens.tolist())
        return Request(
            text=ids,
            embedding=_tensor(voice.embedding),
            prompt_text=tuple(prompt_text),
            lm_prompt=tokens if mode is Mode.ZERO_SHOT else (),
            flow_prompt=tokens if prompted else (),
            prompt_mel=_tensor(voice.mel) if prompted else torch.zeros(0, self.config.mel.bins),
        )


def _tensor(array: Floats) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))


def bundled_voices(file: Path, config: CosyVoiceConfig) -> dict[str, Voice]:
    """The speakers in a ``spk2info.pt``, embedding only or with a whole prompt, as voices that can be stored.

    The file is read without running its code. Raises BundleError naming the speaker that is not well-formed.
    """
    speakers = read_pickled(file)
    if not isinstance(speakers, dict):
        raise BundleError(f"{file}: holds no table of speakers")
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
            raise BundleError(f"{file}: the speaker {str(name)[:80]!r} is not of a form that is known") from None
        if not np.isfinite(voice.mel).all() or not np.isfinite(voice.embedding).all():
            raise BundleError(f"{file}: the speaker {str(name)[:80]!r} holds values that are not numbers")
        voices[str(name)] = voice
    return voices
