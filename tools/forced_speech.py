"""Speak forced tokens on request, with the version of the worker that is on the Python path.

Started by ``tools.compare_upstream``, once for each version that it compares. Prints a line when the engine is ready;
then reads a request per line, ``tokens`` and ``mel_file``, and prints the times of the utterance, both in JSON. With a
``mel_file`` it stores the mel there instead of measuring. All versions speak with the same stored voice, because the
random voices of their benchmarks differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

SWITCH_INTERVAL_S = 0.0005
"""As in the server: a thread of the engine that waits for the interpreter lock would wait for up to 5 ms."""


VOICE = "benchmark"
"""Name of the voice, also within a ``Bench``."""


def load(args: argparse.Namespace) -> Any:
    """Return the ``Bench`` of the version on the path."""
    loader = import_module("tts_worker.engine.cosyvoice.loader")
    try:
        bench = import_module("tts_worker.benchmarks.engine")  # versions before 28 November 2026
    except ModuleNotFoundError:
        bench = import_module("tools.bench.engine")
    names = [field.name for field in fields(loader.LoadOptions)]
    length = next(name for name in names if name.startswith("max_") and name.endswith("_s"))  # has had other names
    options = loader.LoadOptions(
        args.bundle,
        device="cpu",
        threads=args.threads,
        overlap=bool(args.overlap),
        first_tokens=args.first_tokens,
        stride_chunks=args.stride_chunks,
        smooth_start=False,
        max_utterances=4,
        **{length: args.max_segment_s},
    )
    voice = import_module("tts_worker.voices.files").load_voice(args.voices, VOICE)
    with patch.object(bench, "random_voice", lambda bundle, tokens: voice):
        return bench.Bench(options, len(voice.tokens))


def _part(owner: Any, *names: str) -> tuple[str, Any]:
    """Return the attribute of ``owner`` that has one of ``names``, which versions differ in, and its name."""
    return next((name, getattr(owner, name)) for name in names if hasattr(owner, name))


def speak_mel(bench: Any, tokens: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    """Speak ``tokens`` and return what the flow had and made.

    Returns:
        ``mel [mel, frames]``, the frames that the vocoder gets; ``prompt [P]`` and ``prompt_mel [frames, mel]``.
    """
    _, parts = _part(bench.engine, "components", "parts")
    method, original = _part(parts.renderer, "_mel_frames", "_frames")
    mels: list[np.ndarray[Any, Any]] = []

    def record(requests: Any) -> Any:
        frames = original(requests)
        mels.extend(mel.numpy().copy() for mel in frames)
        return frames

    with patch.object(parts.renderer, method, record):
        bench.speak(np.array(tokens, np.int32))
    _, voices = _part(parts, "voice_cache", "book")
    _, states = _part(voices, "states", "_states")
    state = states[VOICE]
    return {
        "mel": np.concatenate(mels, axis=2)[0],
        "prompt": np.array(state.prompt),
        "prompt_mel": state.prompt_mel.numpy(),
    }


def speak(bench: Any, tokens: list[int]) -> dict[str, float]:
    """Speak ``tokens`` alone and return the times, as ``compare_upstream.StreamTimes`` has them."""
    began_cpu_s = time.process_time()
    times = bench.speak(np.array(tokens, np.int32))
    return {
        "first_s": times.first_s,
        "first_samples": times.first_samples,
        "wall_s": times.wall_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "chunks": len(times.chunks_ms),
        "samples": len(times.pcm) // 2,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("voices", type=Path)
    for name in ("threads", "overlap", "first-tokens", "max-segment-s"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--stride-chunks", type=int)
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    bench = load(args)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["mel_file"] is None:
            answer: Any = speak(bench, request["tokens"])
        else:
            spoken = speak_mel(bench, request["tokens"])
            np.savez(request["mel_file"], mel=spoken["mel"], prompt=spoken["prompt"], prompt_mel=spoken["prompt_mel"])
            answer = "saved"
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
