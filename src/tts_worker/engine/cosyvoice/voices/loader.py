"""Reads stored voices on a separate thread, so that a slow disk does not stop the engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.enrol import Speaker
from tts_worker.engine.worker_thread import StreamFuture, WorkerThread
from tts_worker.errors import BundleError, InvalidRequest, UnknownVoice
from tts_worker.voices.files import load_voice, stored_hash, stored_voices


class VoiceLoader:
    """Reads voices from a directory.

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
