"""Enrolls a voice of CosyVoice from a recording and its transcript.

Users write plain transcripts; the language model gets them as CosyVoice's text normalizer writes them
(``tools/reference/text.py`` splits texts by the same rules). Input that makes the reference crash, blanks only or a
number of 40 digits, is accepted. Checks of recordings are in audio/prompt.py, storage is in voices/files.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from tts_worker.audio.decode import Recording, read_recording
from tts_worker.audio.prompt import CLIPPED, PromptFigures, judge, measure, usable_speech, windows
from tts_worker.engine.cosyvoice.bundle.config import V3
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend, check_rate
from tts_worker.engine.cosyvoice.voices.speaker import prompt_ids
from tts_worker.errors import MissingExtra, TextTooLong
from tts_worker.front_end.instruction import END_OF_PROMPT
from tts_worker.front_end.normalizer import Normalize, load_normalizer, needs_rewriting
from tts_worker.front_end.rules import spell_out_number
from tts_worker.text.language import contains_chinese
from tts_worker.voices.files import Voice

_DROPPED = str.maketrans({**dict.fromkeys("（）【】`"), "\n": None})
Rewriter = Callable[[str, bool], str]
"""``(text, is_chinese) -> text``: writes numbers and dates as words."""


MAX_TRANSCRIPT_CHARS = 1000
SPEAKER_WINDOW_S = 3.0
SPEAKER_SIMILARITY = 0.3
"""Parts of one speaker are usually more similar than this; not calibrated on the official weights, so it is a note."""


def enroll(bundle: Bundle, frontend: PromptFrontend, audio: Path | str | bytes | Recording, text: str) -> Voice:
    """Enroll a voice from a recording and its transcript.

    Trims silence at both ends and corrects an unusual level.

    Raises:
        InvalidRequest: The recording cannot make a good voice; says why.
        TextTooLong: The transcript is too long.
        BundleError: The bundle's prompt models are missing or damaged.
    """
    return enroll_measured(bundle, frontend, audio, text)[0]


def enroll_measured(
    bundle: Bundle, frontend: PromptFrontend, audio: Path | str | bytes | Recording, text: str
) -> tuple[Voice, PromptFigures]:
    """Do the same as ``enroll``; also return what was measured of the recording."""
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


def normalize(text: str, *, rewrite: Rewriter | None = None) -> str:
    """Return ``text`` as the reference passes it on unsplit: unchanged with a ``<|tag|>``."""
    return text if is_unchanged(text) else apply_rules(text, rewrite)[0]


def is_unchanged(text: str) -> bool:
    """Whether the rules leave ``text`` as it is: it is empty, or has a ``<|tag|>``."""
    return text == "" or ("<|" in text and "|>" in text)


def apply_rules(text: str, rewrite: Rewriter | None) -> tuple[str, bool]:
    """Return ``text`` after the rules of its language, and whether that is Chinese."""
    text = text.strip()
    chinese = contains_chinese(text)
    if rewrite:
        text = rewrite(text, chinese)
    if not chinese:
        return spell_out_numbers(text), False
    text = _without_blanks(text.replace("\n", ""))
    text = text.replace("²", "平方").replace("³", "立方").replace(".", "。").replace(" - ", "，")
    text = text.translate(_DROPPED).replace("——", " ")
    return re.sub("[，,、]+$", "。", text), True


def _without_blanks(text: str) -> str:
    """Drop spaces, except between two ASCII characters that are not spaces."""

    def solid(i: int) -> bool:
        # As in the reference, text[-1] precedes the first character, and a blank follows the last one.
        return i < len(text) and text[i].isascii() and text[i] != " "

    return "".join(c for i, c in enumerate(text) if c != " " or (solid(i + 1) and solid(i - 1)))


def spell_out_numbers(text: str) -> str:
    """Replace every run of digits by English words; a run of superscripts becomes "zero", as in the reference."""
    runs = ((is_digits, list(run)) for is_digits, run in groupby(text, str.isdigit))
    return "".join(
        spell_out_number("".join(filter(str.isdecimal, run))) if is_digits else "".join(run) for is_digits, run in runs
    )
