"""``tts-worker say --engine cosyvoice --bundle DIR``: offline synthesis with a CosyVoice model directory.

Runs in this process without sessions and supports every mode of the models. Takes the arguments of ``say`` and the ones
added here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tts_worker.audio.decode import read_recording
from tts_worker.audio.pcm import to_pcm
from tts_worker.commands.playback import FileSink, PlayerSink, Sink, StdoutSink, find_player
from tts_worker.commands.progress import Bar
from tts_worker.errors import BundleError, InvalidRequest
from tts_worker.types import SAMPLE_RATE_HZ
from tts_worker.voicepack.commands import open_bundle
from tts_worker.voicepack.voice_file import VOICES_DIR, stored_voices

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.enrol import Speaker
    from tts_worker.engine.cosyvoice.models.campplus import OfflineSpeaker, RequestBuilder, SpokenChunk

MODES = {"zero-shot": "zero_shot", "cross-lingual": "cross_lingual", "instruct": "instruct2", "sft": "sft"}
CONVERSION = "vc"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ``say`` does not define."""
    group = parser.add_argument_group("CosyVoice model directory (--engine cosyvoice)")
    group.add_argument("--bundle", type=Path, metavar="DIR", help="model directory")
    group.add_argument(
        "--voices", type=Path, metavar="DIR", help=f"directory of stored voices (default: BUNDLE/{VOICES_DIR})"
    )
    group.add_argument(
        "--mode",
        choices=[*MODES, CONVERSION],
        help="synthesis mode (default: depends on the voice; vc: voice conversion of --source)",
    )
    group.add_argument("--source", type=Path, metavar="FILE", help="vc: recording to convert")
    group.add_argument("--stream", action="store_true", help="synthesize chunk by chunk, as the server does")
    group.add_argument(
        "--interleave", action="store_true", help="feed the text token by token, as if it were being written"
    )
    group.add_argument(
        "--compat",
        choices=["ours", "reference"],
        default="ours",
        help="follow this implementation or the reference (default: ours)",
    )
    group.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    group.add_argument("--backend", choices=["torch", "onnx"], default="torch", help="back end of flow and vocoder")
    group.add_argument(
        "--graphs", type=Path, metavar="DIR", help="directory written by `export onnx` (default: BUNDLE/onnx)"
    )
    group.add_argument("--rl", action="store_true", help="speak with llm.rl.pt (CosyVoice3)")
    group.add_argument("--normalise", action="store_true", help="spell out numbers and dates with wetext")
    group.add_argument("--allow-special", action="store_true", help="interpret tags such as [laughter] in the text")


def run(args: argparse.Namespace) -> int:
    if args.bundle is None:
        raise InvalidRequest("--engine cosyvoice needs --bundle DIR, a CosyVoice model directory")
    if args.json and args.out == "-":
        raise InvalidRequest("--json and --out - both write to standard output")
    if (args.mode == CONVERSION) != (args.source is not None):
        raise InvalidRequest("--mode vc and --source FILE must be used together")
    if args.source is not None and (args.text or args.file):
        raise InvalidRequest("--mode vc converts --source and takes no text")
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    quiet = args.quiet or args.json
    with Bar(shown=not quiet, unit="s of speech") as bar:
        # Errors in voice or text are reported before the weights are loaded.
        builder, name, voice, synthesize = _prepare(args, bar)
        if builder.bundle.has_random_weights and not args.quiet:
            print("The weights of this model directory are random: the output is noise.", file=sys.stderr)
        bar.update("loading the networks")
        chunks = synthesize(_load(args, builder))
        result = _Result()
        spoken = next(chunks, None)
        sink, place = await _open_sink(args)  # after the first chunk: a failure leaves no file
        try:
            while spoken is not None:
                result.add(spoken)
                await sink.write(to_pcm(spoken.chunk.samples.numpy()))
                spoken = next(chunks, None)
        except BaseException:
            await sink.abort()
            raise
    await sink.close()
    summary = {
        "family": builder.bundle.config.family,
        "random_weights": builder.bundle.has_random_weights,
        "voice": name,
        "mode": args.mode or ("instruct" if args.instruct else voice.mode.value.replace("_", "-")),
        "seed": args.seed,
        **result.summary(),
    }
    if args.json:
        print(json.dumps(summary, ensure_ascii=False))
    elif not args.quiet:
        cut = " (truncated: the model did not stop)" if summary["truncated"] else ""
        rtf = summary["rtf"] or 0.0
        print(f"{summary['audio_s']:.1f} s, real-time factor {rtf:.2f}{cut} -> {place}", file=sys.stderr)
    return 0 if result.end_sample else 1


Synthesize = Callable[["OfflineSpeaker"], Iterator["SpokenChunk"]]


def _prepare(args: argparse.Namespace, bar: Bar) -> tuple[RequestBuilder, str, Speaker, Synthesize]:
    """Prepare everything that needs no weights; the last value starts the synthesis once they are loaded."""
    bundle = open_bundle(args.bundle, rl=args.rl)
    from tts_worker.engine.cosyvoice.compat import Compat
    from tts_worker.engine.cosyvoice.enrol import Mode
    from tts_worker.engine.cosyvoice.models.campplus import OfflineOptions, RequestBuilder

    if bundle.config.sample_rate_hz != SAMPLE_RATE_HZ:
        raise BundleError(f"{bundle.path}: speaks at {bundle.config.sample_rate_hz} Hz; {SAMPLE_RATE_HZ} is supported")
    builder = RequestBuilder.from_bundle(bundle, Compat.reference() if args.compat == "reference" else Compat())
    root = args.voices or args.bundle / VOICES_DIR
    name = _voice_name(args, root)
    voice = builder.voice(root, name)
    options = OfflineOptions(
        mode=Mode(MODES[args.mode]) if args.mode in MODES else None,
        instruction=args.instruct or "",
        seed=args.seed,
        speed=args.speed,
        stream=args.stream,
        interleave=args.interleave,
        allow_special=args.allow_special,
        normalise=args.normalise,
    )
    if args.source is not None:
        request, tokens = builder.conversion(voice, read_recording(args.source))
        return builder, name, voice, lambda speaker: speaker.convert(request, tokens, options)
    requests = builder.requests(voice, _text(args), options)

    def show_progress(segment: int, segments: int, tokens: int) -> None:
        bar.update(f"speaking, part {segment + 1} of {segments}", tokens / bundle.config.token_rate_hz)

    return builder, name, voice, lambda speaker: speaker.speak(requests, options, show_progress)


def _load(args: argparse.Namespace, builder: RequestBuilder) -> OfflineSpeaker:
    from tts_worker.engine.cosyvoice.models.campplus import Backend, OfflineSpeaker

    return OfflineSpeaker.load(builder, device=args.device, backend=Backend(args.backend), graphs=args.graphs)


def _voice_name(args: argparse.Namespace, root: Path) -> str:
    if args.voice:
        return str(args.voice)
    names = stored_voices(root)
    if len(names) != 1:
        hint = f"available: {', '.join(names[:20])}" if names else "none is stored; see: tts-worker voice --help"
        raise InvalidRequest(f"select a voice with --voice NAME; {hint}")
    return names[0]


def _text(args: argparse.Namespace) -> str:
    if args.text:
        return " ".join(args.text)
    if args.file is None or str(args.file) == "-":
        return sys.stdin.buffer.read().decode("utf-8", errors="replace")
    try:
        return str(args.file.read_bytes().decode("utf-8", errors="replace"))
    except OSError as error:
        raise InvalidRequest(f"cannot read {args.file}: {error.strerror}") from None


async def _open_sink(args: argparse.Namespace) -> tuple[Sink, str]:
    if args.out == "-":
        return StdoutSink(), "standard output"
    if args.out is None and (player := find_player()) is not None:
        return await PlayerSink.open(player), player
    out = args.out or "speech.wav"
    return FileSink(Path(out)), out


@dataclass
class _Result:
    """Measurements of a synthesis, without the audio."""

    began_s: float = field(default_factory=perf_counter)
    first_s: float | None = None
    end_sample: int = 0
    chunks: list[dict[str, Any]] = field(default_factory=list)

    def add(self, spoken: SpokenChunk) -> None:
        self.first_s = self.first_s or perf_counter() - self.began_s
        chunk = spoken.chunk
        self.end_sample = spoken.start_sample + len(chunk.samples)
        self.chunks.append(
            {
                "part": spoken.segment,
                "index": chunk.index,
                "start_sample": spoken.start_sample,
                "end_sample": self.end_sample,
                "first_token": chunk.first_token,
                "end_token": chunk.end_token,
                "flow_tokens": chunk.flow_tokens,
                "mel_frames": chunk.frames,
                "chunk_mask": chunk.chunked,
                "final": chunk.final,
                "truncated": chunk.truncated,
                "stages_ms": {stage: round(ms, 2) for stage, ms in chunk.stages_ms},
            }
        )

    def summary(self) -> dict[str, Any]:
        wall_s = perf_counter() - self.began_s
        audio_s = self.end_sample / SAMPLE_RATE_HZ
        return {
            "audio_s": round(audio_s, 3),
            "first_audio_ms": round(1000 * (self.first_s or 0.0), 1),
            "wall_s": round(wall_s, 3),
            "rtf": round(wall_s / audio_s, 4) if audio_s else None,
            "truncated": any(chunk["truncated"] for chunk in self.chunks),
            "chunks": self.chunks,
        }
