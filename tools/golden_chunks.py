"""Compare the chunks of each CosyVoice family with recorded hashes, on the CPU.

    python -m tools.golden_chunks check
    python -m tools.golden_chunks check --emulate Nehalem
    python -m tools.golden_chunks record                     # after an intended change of the audio

A small model of each family, with random weights, speaks through the streaming engine. ``check`` compares the speech
tokens and, of each chunk, the range of the mel and the SHA-256 of the PCM with those that ``record`` has written, and
exits with 1 if they differ, or with 2 if they cannot be compared. The process runs with ``ENVIRONMENT``, in which the
arithmetic does not depend on the instruction set of the processor. The hashes hold for any x86-64 processor with the
recorded version of PyTorch, and a C library whose functions round like those of the recorded one.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tts_worker.cli import run_command
from tts_worker.errors import ConfigError, SynthesisFailed
from tts_worker.types import Audio, Done, EndText, Open, Segment, SynthesisParams, Text, UtteranceKey

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle
    from tts_worker.voices.files import Voice

FILE = Path(__file__).parents[1] / "tests" / "data" / "cosyvoice" / "golden_chunks.json"

ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "default",  # PyTorch: kernels without AVX
    "MKL_CBWR": "COMPATIBLE",  # MKL: the same results on all processors
    "OMP_NUM_THREADS": "1",  # sums are divided by the number of threads
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4",  # C library: functions without fused multiply-add
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX2 FMA3 AVX512F",  # numpy: no AVX, in new and old names
    "OPENBLAS_CORETYPE": "Nehalem",  # its matrix products
}
"""Without these, PyTorch and its libraries select their kernels by the processor."""

FUNCTIONS = {
    ctypes.c_float: ("cosf", "erff", "expf", "log1pf", "logf", "sinf", "tanhf"),
    ctypes.c_double: ("cos", "exp", "expm1", "log", "log1p", "sin"),
}
"""What PyTorch calls in the C library while it computes the audio."""

TEXTS = {"cosyvoice1": "The world, you and it.", "cosyvoice2": "Hi.", "cosyvoice3": "Hi."}
"""By family. Each is rendered in two parts or more: random weights speak 20 tokens per token of the text."""

EMULATOR = "qemu-x86_64"
VOICE = "golden"
SEED = 7
PROMPT_TOKENS = 30
HOW_TO_RECORD = "If the audio was meant to change, record it again: python -m tools.golden_chunks record"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check", "record", "print"))
    parser.add_argument("--file", type=Path, default=FILE, help="the recording (default: %(default)s)")
    parser.add_argument("--emulate", metavar="CPU", help="on an emulated processor, such as Nehalem; 20 times slower")


def run(args: argparse.Namespace) -> int:
    if args.emulate or any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        _start_again(args)
    if args.action != "check":
        text = to_json({"made_on": made_on(), "functions": functions(), "families": speak_all()})
        print(text, end="") if args.action == "print" else args.file.write_text(text)
        return 0
    recorded = json.loads(args.file.read_text())
    # The functions only on the recorded system: another one has no library of that name.
    reason = why_not_comparable(recorded, made_on()) or why_not_comparable(recorded, made_on(), functions())
    if reason is not None:
        raise ConfigError(reason)
    differences = compare(recorded["families"], speak_all())
    print("\n".join([*differences, HOW_TO_RECORD] if differences else ["the chunks are the recorded ones"]))
    return 1 if differences else 0


def _start_again(args: argparse.Namespace) -> NoReturn:
    """Replace this process by one with ``ENVIRONMENT``. Raises ConfigError."""
    words = [sys.executable, "-m", "tools.golden_chunks", args.action, "--file", str(args.file)]
    if args.emulate:
        if shutil.which(EMULATOR) is None:
            raise ConfigError(f"--emulate needs {EMULATOR}, which is in Debian's package qemu-user")
        # It runs the resolved interpreter; -0 keeps the path in the virtual environment, for its packages.
        words = [EMULATOR, "-cpu", args.emulate, "-0", sys.executable, os.path.realpath(sys.executable), *words[1:]]
    os.execvpe(words[0], words, {**os.environ, **ENVIRONMENT})


def to_json(recording: dict[str, Any]) -> str:
    """Return JSON with one chunk a line."""
    families = []
    for family, spoken in recording["families"].items():
        chunks = ",\n".join(f"    {json.dumps(chunk)}" for chunk in spoken["chunks"])
        tokens = json.dumps(spoken["tokens"])
        families.append(f'  "{family}": {{\n   "tokens": {tokens},\n   "chunks": [\n{chunks}\n   ]\n  }}')
    rest = "".join(f' "{name}": {json.dumps(recording[name])},\n' for name in ("made_on", "functions"))
    return f'{{\n{rest} "families": {{\n' + ",\n".join(families) + "\n }\n}\n"


# -- comparing --------------------------------------------------------------------------------------------------------


def made_on() -> dict[str, str]:
    """Return what the hashes depend on. PyTorch is not imported."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    library = " ".join(platform.libc_ver())
    return {"torch": torch, "system": platform.system(), "machine": platform.machine(), "C library": library}


def functions() -> dict[str, str]:
    """Return a hash of some values of each function in ``FUNCTIONS``, as the C library rounds them."""
    library = ctypes.CDLL("libm.so.6")
    hashes = {}
    for number, names in FUNCTIONS.items():
        for name in names:
            function = library[name]
            function.restype, function.argtypes = number, [number]
            values = [function(n / 64 - 7.99) for n in range(1024)]
            text = " ".join("" if math.isnan(value) else value.hex() for value in values)
            hashes[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return hashes


def why_not_comparable(
    recorded: dict[str, Any], here: dict[str, str], functions_here: dict[str, str] | None = None
) -> str | None:
    """Return why this machine cannot be compared with a recording; None if it can, as far as the arguments tell.

    Another version of the C library is no reason as long as its functions round alike.
    """
    before = recorded["made_on"]
    for name in ("torch", "system", "machine"):
        if here[name] != before[name]:
            return f"the hashes were recorded with {name} {before[name]}, here it is {name} {here[name]}"
    if functions_here is None or here["C library"] == before["C library"]:
        return None
    different = [name for name, value in recorded["functions"].items() if functions_here[name] != value]
    if different:
        return f"{here['C library']} rounds otherwise than {before['C library']}: {', '.join(different)}"
    return None


def compare(recorded: dict[str, Any], spoken: dict[str, Any]) -> list[str]:
    """Return a line for each family that differs, about the first difference."""
    differences = (_compare_family(recorded.get(family), spoken[family]) for family in spoken)
    return [f"{family}: {line}" for family, line in zip(spoken, differences, strict=True) if line is not None]


def _compare_family(recorded: dict[str, Any] | None, spoken: dict[str, Any]) -> str | None:
    if recorded is None:
        return "is not recorded"
    for index, (before, now) in enumerate(zip(recorded["tokens"], spoken["tokens"], strict=False)):
        if before != now:
            return f"speech token {index} is {now} instead of {before}"
    for index, (before, now) in enumerate(zip(recorded["chunks"], spoken["chunks"], strict=False)):
        if different := [name for name in now if before.get(name) != now[name]]:
            tokens = f"tokens {now['token_start']} to {now['token_end']}"
            return f"chunk {index} ({tokens}) differs in {', '.join(different)}"
    for name in ("tokens", "chunks"):
        if len(recorded[name]) != len(spoken[name]):
            return f"{len(spoken[name])} {name} instead of {len(recorded[name])}"
    return None


# -- speaking ---------------------------------------------------------------------------------------------------------


def speak_all() -> dict[str, Any]:
    """Let each family speak.

    Returns:
        By family ``tokens``, the speech tokens, and ``chunks``: tokens and mel frames that a chunk was rendered from,
        range of the mel, number of samples at 24 kHz, SHA-256 of the PCM.
    """
    import torch

    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # selects its kernels by the processor
    torch.backends.nnpack.set_flags(False)  # needs AVX2
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT":
        raise ConfigError("PyTorch ignores ATEN_CPU_CAPABILITY, so the hashes would depend on the processor")
    return {family: _speak(family, text) for family, text in TEXTS.items()}


def _speak(family: str, text: str) -> dict[str, Any]:
    from tools.random_bundle.writer import write_random_bundle
    from tts_worker.engine.chunk_log import chunk_log
    from tts_worker.engine.cosyvoice.audio.segment import AudioSegment
    from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine

    logging.getLogger("tts_worker").setLevel(logging.ERROR)  # random weights are meant here
    chunk_log.setLevel(logging.DEBUG)  # has the range of the mel computed
    chunk_log.propagate = False
    with tempfile.TemporaryDirectory() as directory:
        bundle = write_random_bundle(Path(directory) / family, family, prompt_models=False)
        options = LoadOptions(bundle.path, device="cpu", threads=1, max_utterances=1, memory_gb=0.1, smooth_start=False)
        engine = load_engine(options, more_voices={VOICE: _voice(bundle)})
    key = UtteranceKey(family, 1)
    for command in (
        Open(key, SynthesisParams(VOICE, seed=SEED), credit_samples=1 << 40, paced=False),
        Text(key, Segment.whole(text)),
        EndText(key),
    ):
        engine.handle(command)
    sequence = engine.sequences[key]
    segments: list[AudioSegment] = []
    chunks: list[dict[str, Any]] = []
    while key in engine.sequences:
        for event in engine.step(0.0):
            if isinstance(event, Audio):
                chunks.append(_describe(event))
            elif not isinstance(event, Done):
                raise SynthesisFailed(f"{family}: {event}")
        segments += [segment for segment in sequence.generator.audio_segments if segment not in segments]
    engine.close()
    return {"tokens": [token for segment in segments for token in segment.tokens], "chunks": chunks}


def _voice(bundle: Bundle) -> Voice:
    """Return a voice with a prompt. Its values are quotients of small integers, the same everywhere."""
    import numpy as np

    from tts_worker.engine.cosyvoice.bundle.config import V3
    from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
    from tts_worker.voices.files import Voice

    config = bundle.config
    tokenizer = TextTokenizer.from_bundle(bundle)
    system = [tokenizer.end_of_prompt_id] if config.family == V3 else []
    seconds = PROMPT_TOKENS / config.token_rate_hz
    frames = round(seconds * config.mel.sample_rate_hz / config.mel.hop_samples)
    values = np.arange(frames * config.mel.bins) * 7919 % 1009 / 1009  # in [0, 1), without a visible pattern
    return Voice(
        family=config.family,
        prompt_text="the world",
        prompt_text_ids=np.array([*system, *tokenizer.encode("the world")], dtype=np.int32),
        tokens=(np.arange(PROMPT_TOKENS) * 977 % config.flow.vocab).astype(np.int32),
        mel=(8 * values - 9).reshape(frames, config.mel.bins).astype(np.float32),
        embedding=(np.arange(config.flow.spk_embed) * 31 % 193 / 193 - 0.5).astype(np.float32),
        seconds=seconds,
    )


def _describe(audio: Audio) -> dict[str, Any]:
    return {
        **dict(audio.meta.details),
        "samples": audio.samples,
        "sha256": hashlib.sha256(audio.pcm).hexdigest(),
    }


def main(words: Sequence[str]) -> int:
    return run_command("python -m tools.golden_chunks", sys.modules[__name__], words, description=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
