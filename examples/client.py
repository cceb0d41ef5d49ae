"""Speak, pause, resume and interrupt through the Python client.

tts-worker serve &
python examples/client.py                            # or: ws://worker.example:8080, or local: to run without a server
"""

from __future__ import annotations

import asyncio
import sys

import tts_worker
from tts_worker.types import Acknowledged, ControlName, Ended, PcmFrame, Started, Words

STORY = "Once upon a time there was a voice that could be interrupted, and it knew what it had said. " * 3


async def main(url: str) -> None:
    async with tts_worker.connect(url) as client, client.session() as session:
        for token in STORY.split(" "):  # as a language model streams it
            session.speak(token + " ")
        session.end_text()

        played_samples = 0
        async for item in session:
            if isinstance(item, Started):
                print(f"voice: {item.params.voice}")
            elif isinstance(item, Words):
                print(" ".join(word.text for word in item.words), end=" ", flush=True)
            elif isinstance(item, PcmFrame):  # 20 ms of s16le mono: play it
                before = played_samples
                played_samples = played_samples + item.samples
                if before < session.sample_rate_hz <= played_samples:
                    session.pause()  # after one second of audio; resume() continues with the very next sample
                elif before < 2 * session.sample_rate_hz <= played_samples:
                    # returns at once; the report follows
                    session.stop("interrupted", played_samples=played_samples, key=item.key)
            elif isinstance(item, Acknowledged):
                print(f"[{item.command.value} at {item.position_samples / session.sample_rate_hz:.2f} s]", end=" ")
                if item.command is ControlName.PAUSE:
                    session.resume()
            elif isinstance(item, Ended):
                print(f"\n{item.outcome.value}: {len(item.receipt.text_spoken)} of {len(STORY)} characters were spoken")
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8080"))
