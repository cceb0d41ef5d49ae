"""Speak with a CosyVoice model directory and the reference's algorithms, to compare them with the engine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tts_worker.audio.decode import read_recording
from tts_worker.audio.pcm import to_pcm
from tts_worker.audio.resampler import Resampler
from tts_worker.commands.common import quiet_logs
from tts_worker.commands.model_directory import open_bundle
from tts_worker.commands.say import take_instruction
from tts_worker.features.offline.say import (
    CONVERSION,
    MODES,
    Chunk,
    Result,
    Speak,
    check_conversion,
    mode_of,
    read_text,
    speak_bundle,
)
from tts_worker.types import SAMPLE_RATE_HZ

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.voices.speaker import Speaker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", help="text to speak; without it, standard input is read")
    parser.add_argument("--file", type=Path, help="read the text from this file (-: standard input)")
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="model directory")
    parser.add_argument("--rl", action="store_true", help="speak with llm.rl.pt (CosyVoice3)")
    parser.add_argument("--voices", type=Path, metavar="DIR", help="stored voices (default: BUNDLE/voices)")
    parser.add_argument("--voice", help="name of the voice (default: the only one)")
    parser.add_argument("--mode", choices=[*MODES, CONVERSION], help="as of `tts-worker say`")
    parser.add_argument("--source", type=Path, metavar="FILE", help="vc: recording to convert")
    parser.add_argument("--instruct", help="how to say it")
    parser.add_argument("--seed", type=int, default=0, help="seed of PyTorch's generator (default 0)")
    parser.add_argument("--speed", type=float, default=1.0, help="0.1 to 10, without --stream (default 1.0)")
    parser.add_argument("--stream", action="store_true", help="compute chunk by chunk, and write each at once")
    parser.add_argument("--interleave", action="store_true", help="feed the text as if it arrived token by token")
    parser.add_argument("--allow-special", action="store_true", help="interpret every special token in the text")
    parser.add_argument("--normalize", action="store_true", help="write out numbers and dates with wetext")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--out", help="file to write, or - for raw s16le on standard output")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the inputs of every chunk")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    args.source_rate = None  # check_conversion: a recording is a file
    if not args.allow_special:
        take_instruction(args)
    check_conversion(args)
    bundle = open_bundle(args.bundle, rl=args.rl)
    from tools.reference.speech import ReferenceOptions, ReferenceSpeech

    options = ReferenceOptions(
        mode=mode_of(args),
        instruction=args.instruct or "",
        seed=args.seed,
        speed=args.speed,
        stream=args.stream,
        interleave=args.interleave,
        allow_special=args.allow_special,
        normalize=args.normalize,
    )

    def prepare(name: str, speaker: Speaker) -> Speak:
        speech = ReferenceSpeech(bundle, speaker, options)
        if args.source is None:
            speech.read(read_text(args))
        else:
            speech.convert(read_recording(args.source))
        return lambda result: chunks(speech, result)

    def chunks(speech: ReferenceSpeech, result: Result) -> Iterator[Chunk]:
        networks = speech.load(args.device)
        result.begin()
        resampler = Resampler(bundle.config.sample_rate_hz, SAMPLE_RATE_HZ)
        for part, chunk in speech.speak(networks):
            result.truncated |= chunk.truncated
            result.show_progress("speaking", len(chunk.samples))
            report = {
                "part": part,
                "first_token": chunk.first_token,
                "end_token": chunk.end_token,
                "flow_tokens": chunk.flow_tokens,
                "mel_frames": chunk.frames,
                "chunk_mask": chunk.chunked,
                "stages_ms": dict(chunk.stages_ms),
            }
            pcm = resampler.process(to_pcm(chunk.samples.numpy()))
            yield Chunk(pcm + resampler.flush() if chunk.final else pcm, report)

    return speak_bundle(args, bundle, args.voices, prepare)
