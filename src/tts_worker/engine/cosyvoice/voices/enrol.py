"""CosyVoice voices: enrolled from a recording or read from a bundle's speakers, and turned into requests.

This module owns the prompt format of the models: ``<|endofprompt|>``, the system prompt of CosyVoice3, and which ids
and audio each mode needs. Users write plain transcripts and instructions. Checks of recordings are in audio/prompt.py,
storage is in voices/files.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tts_worker.audio.decode import Recording, read_recording
from tts_worker.audio.pcm import Floats
from tts_worker.audio.prompt import CLIPPED, PromptFigures, judge, measure, usable_speech, windows
from tts_worker.engine.cosyvoice.bundle.config import V1, V3, CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.tensor_files import read_pickled
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.tokens.whisper_tokenizer import WhisperTokenizer
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend, check_rate
from tts_worker.engine.cosyvoice.voices.presets import instruction_of
from tts_worker.engine.cosyvoice.voices.request import Request
from tts_worker.engine.cosyvoice.voices.transcript import normalize
from tts_worker.errors import BundleError, InvalidRequest, MissingExtra, TextTooLong
from tts_worker.text.instruction import END_OF_PROMPT, SYSTEM_PROMPT
from tts_worker.text.normalizer import Normalize, load_normalizer, needs_rewriting
from tts_worker.voices.files import Voice

MAX_TRANSCRIPT_CHARS = 1000
_LOOSE_FRAMES = 6.0  # 70 ms
SPEAKER_WINDOW_S = 3.0
SPEAKER_SIMILARITY = 0.3
"""Parts of one speaker are usually more similar than this; not calibrated on the official weights, so it is a note."""


class Mode(str, Enum):
    """How a voice is used."""

    ZERO_SHOT = "zero_shot"  # continue the prompt: closest to the voice
    CROSS_LINGUAL = "cross_lingual"  # timbre only: for other languages, and without a transcript
    INSTRUCT = "instruct2"  # timbre plus an instruction: an accent, an emotion
    SFT = "sft"  # a speaker the model was fine-tuned on


def enrol(bundle: Bundle, frontend: PromptFrontend, audio: Path | str | bytes | Recording, text: str) -> Voice:
    """Enrol a voice from a recording and its transcript.

    Trims silence at both ends and corrects an unusual level.

    Raises:
        InvalidRequest: The recording cannot make a good voice; says why.
        TextTooLong: The transcript is too long.
        BundleError: The bundle's prompt models are missing or damaged.
    """
    return enrol_measured(bundle, frontend, audio, text)[0]


def enrol_measured(
    bundle: Bundle, frontend: PromptFrontend, audio: Path | str | bytes | Recording, text: str
) -> tuple[Voice, PromptFigures]:
    """Do the same as ``enrol``; also return what was measured of the recording."""
    recording = audio if isinstance(audio, Recording) else read_recording(audio)
    notes = []
    speech, gain_db = usable_speech(recording)
    check_rate(recording.rate_hz)
    if recording.rate_hz < bundle.config.sample_rate_hz:
        notes.append(f"the sample rate is only {recording.rate_hz} Hz: the voice will sound duller than it could")
    transcript = plain_transcript(text)
    # The level correction moves clipped samples away from full scale: they are counted in the recording.
    clipped_share = float((np.abs(recording.samples) >= CLIPPED).mean())
    figures = measure(speech, transcript)
    figures = replace(figures, clipped_share=clipped_share, level_dbfs=figures.level_dbfs - gain_db)
    notes += judge(figures)
    if not transcript:
        notes.append("no transcript: only the timbre is used (cross-lingual mode)")
    if not bundle.has_random_weights:
        similarity = _speaker_similarity(frontend, speech)
        figures = replace(figures, speaker_similarity=similarity)
        if similarity is not None and similarity < SPEAKER_SIMILARITY:
            notes.append(f"several people may speak: two parts have a similarity of only {similarity:.2f}")
    features = frontend.prompt(speech)
    tokenizer = TextTokenizer.from_bundle(bundle)
    if bundle.config.family != V3:  # the reference leaves text with tags alone, which CosyVoice3's prompts have
        transcript = spoken_transcript(transcript)
    voice = Voice(
        family=bundle.config.family,
        prompt_text=transcript,
        prompt_text_ids=np.array(prompt_ids(tokenizer, bundle.config, transcript), dtype=np.int32),
        tokens=features.tokens.numpy(),
        mel=features.mel.numpy(),
        embedding=features.embedding.numpy(),
        seconds=speech.seconds,
        gain_db=gain_db,
        notes=tuple(notes),
    )
    return voice, figures


def _speaker_similarity(frontend: PromptFrontend, speech: Recording) -> float | None:
    """Return the least cosine similarity of the speaker embeddings of two parts; None with fewer than two parts."""
    parts = [frontend.embedding(part) for part in windows(speech, SPEAKER_WINDOW_S)]
    if len(parts) < 2:
        return None
    unit = torch.nn.functional.normalize(torch.stack(parts), dim=1)
    return float((unit @ unit.T).min())


def plain_transcript(text: str) -> str:
    """The transcript on one line, without the tags that the reference requires users to write."""
    return _checked(re.sub(r"\s+", " ", text.rpartition(END_OF_PROMPT)[2]).strip())


def spoken_transcript(transcript: str) -> str:
    """The transcript as the reference's front end passes it on: its rules for Chinese and English, numbers as words.

    Numbers are written by wetext, as in the texts to speak, or by the rules alone where it is not installed.
    """

    def rewrite(text: str, is_chinese: bool) -> str:
        language = "zh" if is_chinese else "en"
        return normalizer(text, language) if normalizer and needs_rewriting(text, language) else text

    normalizer = _normalizer()
    return _checked(normalize(transcript, rewrite=rewrite))


@cache
def _normalizer() -> Normalize | None:
    """The rules of wetext; None if it is not installed."""
    try:
        return load_normalizer()
    except MissingExtra:
        return None


def _checked(transcript: str) -> str:
    if len(transcript) > MAX_TRANSCRIPT_CHARS:
        raise TextTooLong(
            f"the transcript has {len(transcript)} characters; a prompt of 30 s has at most {MAX_TRANSCRIPT_CHARS}"
        )
    return transcript


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


def _language_ids(tokenizer: WhisperTokenizer, language: str | None) -> list[int]:
    return tokenizer.language_ids(language.partition("-")[0].lower()) if language else []


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
        needs_prompt = mode is not Mode.SFT and not (is_v1 and mode is Mode.INSTRUCT)
        if needs_prompt and not len(voice.tokens):
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
            tells_speaker=is_v1 and mode is not Mode.INSTRUCT,
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
