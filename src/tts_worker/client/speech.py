"""Speech as a value: its audio, its words and its playback report."""

from __future__ import annotations

import asyncio
import base64
import html
import io
import os
import wave
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tts_worker.client.playback import PLAYERS, SAVE_INSTEAD, PlayerFailed, PlayerSink, find_player, open_audio_file
from tts_worker.errors import InvalidRequest, MissingPackage
from tts_worker.types import BYTES_PER_SAMPLE, Outcome, Receipt, Word

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, repr=False)
class Speech:
    """Synthesized speech, or a part of it while it is being synthesized. Notebooks show it as a player.

    Attributes:
        pcm: The audio: s16le, mono.
        sample_rate_hz: Its sample rate.
        words: The words that begin in it, with their positions in the text and in the audio of the utterance.
        start_sample: Position of its first sample in the utterance; 0 for all of it.
        report: The playback report, once the utterance has ended: what was spoken, what remains, and why it ended.
        outcome: How the utterance ended; None for a part.
    """

    pcm: bytes
    sample_rate_hz: int
    words: tuple[Word, ...] = ()
    start_sample: int = 0
    report: Receipt | None = None
    outcome: Outcome | None = None

    @property
    def samples(self) -> NDArray[np.float32]:
        """The audio as float32 in [-1, 1), shape (samples,). Raises MissingPackage without numpy."""
        try:
            import numpy as np
        except ImportError:
            raise MissingPackage("samples as an array", "numpy") from None
        samples: NDArray[np.float32] = np.frombuffer(self.pcm, "<i2").astype(np.float32) / np.float32(32_768)
        return samples

    @property
    def duration_s(self) -> float:
        return len(self.pcm) / BYTES_PER_SAMPLE / self.sample_rate_hz

    def wav(self) -> bytes:
        """Return the audio as a WAV file."""
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(BYTES_PER_SAMPLE)
            file.setframerate(self.sample_rate_hz)
            file.writeframes(self.pcm)
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the audio to a file in the format of its suffix: .wav .flac .mp3 .opus .ogg .pcm .raw.

        Returns:
            The path.

        Raises:
            InvalidRequest: The format is unknown, or the file cannot be written.
            MissingPackage: The format needs soundfile, which is not installed. WAV and raw PCM do not.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidRequest(f"the path of an audio file must be str or Path, not {type(path).__name__}")
        path = Path(path)
        file = open_audio_file(path, self.sample_rate_hz)
        try:
            file.write(self.pcm)
        finally:
            file.close()
        return path

    def play(self) -> None:
        """Play the audio through this machine's player and wait for its end.

        Raises:
            PlayerFailed: There is no player program, or it failed.
        """
        # Its own thread: a notebook runs an event loop in this one.
        with ThreadPoolExecutor(1, "tts-play") as thread:
            thread.submit(asyncio.run, self._play()).result()

    async def _play(self) -> None:
        sink = await open_player(self.sample_rate_hz)
        try:
            await sink.write(self.pcm)
        except BaseException:
            await sink.abort()
            raise
        await sink.close()

    def __repr__(self) -> str:  # without the text
        ended = f", {self.outcome.value}" if self.outcome else ""
        return f"<Speech: {self.duration_s:.2f} s at {self.sample_rate_hz} Hz, {len(self.words)} words{ended}>"

    def _repr_html_(self) -> str:
        """Return a player for notebooks, which show it as the value of a cell."""
        audio = base64.b64encode(self.wav()).decode()
        label = html.escape(f"{self.duration_s:.1f} seconds of speech")
        return f'<audio controls aria-label="{label}" src="data:audio/wav;base64,{audio}"></audio>'


async def open_player(sample_rate_hz: int) -> PlayerSink:
    """Start this machine's preferred player program. Raises PlayerFailed if there is none or it does not start."""
    player = find_player()
    if player is None:
        raise PlayerFailed(f"no audio player found: install one of {', '.join(PLAYERS)}. {SAVE_INSTEAD}")
    return await PlayerSink.open(player, sample_rate_hz)
