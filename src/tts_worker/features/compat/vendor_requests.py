"""What vendors' requests become: options of a session, and a download that is sent whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import aclosing
from dataclasses import replace

from tts_worker.audio.encoders import AudioFormat, open_encoder, wav_file
from tts_worker.errors import TTSWorkerError
from tts_worker.server.rendering import download
from tts_worker.session.hub import SessionHub
from tts_worker.types import SAMPLE_RATE_HZ, SessionOptions
from tts_worker.voices.routing import INSTRUCT, VoiceRequest, choose_voice

SPEED_HEADER = "x-speed"

_LANGUAGE_TAG = re.compile(r"\s*<\|(zh|en|jp|ja|yue|ko)\|>")
_BCP_47 = {"jp": "ja"}  # the model's name of a language: the common tag


def speech_options(
    voice: str | None, instruct: str | None = None, speed: float = 1.0, language: str | None = None
) -> SessionOptions:
    """Build the options for a whole text: unpaced, in engine chunks."""
    return SessionOptions(
        voice=voice or None,
        speed=speed,
        language=language,
        instruct=instruct or None,
        needs=(INSTRUCT,) if instruct else (),
        realtime=False,
        raw_chunks=True,
    )


def within_speeds(hub: SessionHub, options: SessionOptions) -> SessionOptions:
    """Bring the speed into the range of the voice that will speak, for clients whose range is wider.

    The response names the speed in ``SPEED_HEADER`` where it was changed.
    """
    try:
        slowest, fastest = choose_voice(hub.voices, VoiceRequest.of(options)).info.speed_range
    except TTSWorkerError:  # it is refused when the session is opened
        return options
    return replace(options, speed=min(max(options.speed, slowest), fastest))


def split_language(text: str) -> tuple[str, str | None]:
    """Split a leading language tag of CosyVoice-300M (``<|en|>``) from a whole text.

    Returns:
        The text to speak, and the language as a BCP-47 tag; None without a tag.
    """
    if (tag := _LANGUAGE_TAG.match(text)) is None:
        return text, None
    return text[tag.end() :], _BCP_47.get(tag[1], tag[1])


async def whole_download(
    hub: SessionHub,
    options: SessionOptions,
    text: str,
    audio_format: AudioFormat,
    headers: MutableMapping[str, str] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the encoded audio of a whole text at once, as ``download`` does in parts.

    A failure is then an error and no file that ends early, the header of a WAV file states its length, and the file is
    signed if the settings want it.
    """
    rate_hz = options.sample_rate or SAMPLE_RATE_HZ
    as_wav = audio_format is AudioFormat.WAV
    encoder = open_encoder(AudioFormat.PCM if as_wav else audio_format, rate_hz)
    async with aclosing(download(hub, options, text, encoder, headers)) as parts:
        data = b"".join([part async for part in parts])
    data = wav_file(data, rate_hz) if as_wav else data
    signer = hub.config.file_signer
    yield data if signer is None else await asyncio.to_thread(signer.sign, data, audio_format)
