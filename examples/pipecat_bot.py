"""A pipecat bot in a terminal that uses a tts-worker: it echoes each line you type and writes its voice to a WAV file.

    pip install "./packages/tts-worker-client[pipecat]"
    tts-worker serve &                               # the worker, on this or another machine (TTS_WORKER_URL)
    python examples/pipecat_bot.py answers.wav

It needs no account. In a real bot a language model replaces ``Echo`` and a transport (WebRTC, telephony) replaces
``WavFile`` and the keyboard; the line with ``TTSWorkerTTSService`` stays.
"""

from __future__ import annotations

import asyncio
import sys
import wave
from pathlib import Path

from pipecat.frames.frames import (
    EndFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.utils.time import time_now_iso8601
from pipecat.workers.runner import WorkerRunner

from tts_worker.integrations.pipecat import TTSWorkerTTSService


class Echo(FrameProcessor):
    """Placeholder for a language model."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            await self.push_frame(LLMFullResponseStartFrame())
            for word in f"You said: {frame.text}".split():
                await self.push_frame(LLMTextFrame(word + " "))
            await self.push_frame(LLMFullResponseEndFrame())
        else:
            await self.push_frame(frame, direction)


class WavFile(FrameProcessor):
    """Placeholder for a transport: writes the audio to a file and prints the words as they are spoken."""

    def __init__(self, path: Path, rate_hz: int) -> None:
        super().__init__()
        self.spoken = asyncio.Event()
        self._file = wave.open(str(path), "wb")  # noqa: SIM115  (closed in cleanup)
        self._file.setparams((1, 2, rate_hz, 0, "NONE", ""))

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self._file.writeframes(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            print(frame.text, end=" ", flush=True)
        elif isinstance(frame, TTSStoppedFrame):
            print(flush=True)
            self.spoken.set()
        await self.push_frame(frame, direction)

    async def cleanup(self) -> None:
        self._file.close()
        await super().cleanup()


async def main(path: Path) -> None:
    rate_hz = 24_000
    out = WavFile(path, rate_hz)
    worker = PipelineWorker(
        Pipeline([Echo(), TTSWorkerTTSService(), out]),
        params=PipelineParams(audio_out_sample_rate=rate_hz, enable_metrics=True),
    )
    runner = WorkerRunner()
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        out.spoken.clear()
        await worker.queue_frame(TranscriptionFrame(line, "keyboard", time_now_iso8601()))
        await out.spoken.wait()
    await worker.queue_frame(EndFrame())
    await running


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "answers.wav")))
