"""``tts-worker say --bundle DIR``: a CosyVoice model directory speaks in this process, one utterance at a time.

The plain way, without sessions: for hearing a voice or a model, for files, and for every mode that the models have.
Takes the arguments of ``say`` and those of its own group.
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
    from tts_worker.engine.offline.speaker import OfflineSpeaker, Reader, SpokenChunk

MODES = {"zero-shot": "zero_shot", "cross-lingual": "cross_lingual", "instruct": "instruct2", "sft": "sft"}
CONVERSION = "vc"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only what ``say`` does not have already."""
    group = parser.add_argument_group("a CosyVoice model directory, in this process (--engine cosyvoice)")
    group.add_argument("--bundle", type=Path, metavar="DIR", help="the model directory")
    group.add_argument("--voices", type=Path, metavar="DIR", help=f"folder of voices (default: BUNDLE/{VOICES_DIR})")
    group.add_argument(
        "--mode", choices=[*MODES, CONVERSION], help="how the voice is used (default: what suits it; vc: --source)"
    )
    group.add_argument("--source", type=Path, metavar="FILE", help="vc: the recording whose words are to be said")
    group.add_argument("--stream", action="store_true", help="make the sound chunk by chunk, as the server does")
    group.add_argument("--interleave", action="store_true", help="feed the text as if it were still being written")
    group.add_argument("--compat", choices=["ours", "reference"], default="ours", help="whose ways (default: ours)")
    group.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    group.add_argument("--backend", choices=["torch", "onnx"], default="torch", help="for flow and vocoder")
    group.add_argument("--graphs", type=Path, metavar="DIR", help="of `export onnx` (default: BUNDLE/onnx)")
    group.add_argument("--rl", action="store_true", help="speak with llm.rl.pt (CosyVoice3)")
    group.add_argument("--normalise", action="store_true", help="write out numbers and dates with wetext")
    group.add_argument("--allow-special", action="store_true", help="tags such as [laughter] in the text take effect")


def run(args: argparse.Namespace) -> int:
    if args.bundle is None:
        raise InvalidRequest("--engine cosyvoice needs --bundle DIR, a CosyVoice model directory")
    if args.json and args.out == "-":
        raise InvalidRequest("--json and --out - both want standard output")
    if (args.mode == CONVERSION) != (args.source is not None):
        raise InvalidRequest("--mode vc and --source FILE need each other")
    if args.source is not None and (args.text or args.file):
        raise InvalidRequest("--mode vc says what is said in --source: give no text")
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    quiet = args.quiet or args.json
    with Bar(shown=not quiet, unit="s of speech") as bar:
        reader, name, voice, make = _prepare(
            args, bar
        )  # what is wrong with voice or text shows before the weights load
        if reader.bundle.has_random_weights and not args.quiet:
            print("The weights of this model directory are random: this is noise, not speech.", file=sys.stderr)
        bar.update("loading the networks")
        chunks, take = make(_load(args, reader)), _Take()
        spoken = next(chunks, None)
        sink, place = await _open_sink(args)  # only now: what fails leaves no file
        try:
            while spoken is not None:
                take.add(spoken)
                await sink.write(to_pcm(spoken.chunk.samples.numpy()))
                spoken = next(chunks, None)
        except BaseException:
            await sink.abort()
            raise
    await sink.close()
    summary = {
        "family": reader.bundle.config.family,
        "random_weights": reader.bundle.has_random_weights,
        "voice": name,
        "mode": args.mode or ("instruct" if args.instruct else voice.mode.value.replace("_", "-")),
        "seed": args.seed,
        **take.summary(),
    }
    if args.json:
        print(json.dumps(summary, ensure_ascii=False))
    elif not args.quiet:
        cut = " (cut off: the model did not find an end)" if summary["truncated"] else ""
        rtf = summary["rtf"] or 0.0
        print(f"{summary['audio_s']:.1f} s, real-time factor {rtf:.2f}{cut} -> {place}", file=sys.stderr)
    return 0 if take.end_sample else 1


Make = Callable[["OfflineSpeaker"], Iterator["SpokenChunk"]]


def _prepare(args: argparse.Namespace, bar: Bar) -> tuple[Reader, str, Speaker, Make]:
    """Everything that needs no weights, and how to go on once they are there."""
    bundle = open_bundle(args.bundle, rl=args.rl)
    from tts_worker.engine.cosyvoice.compat import Compat
    from tts_worker.engine.cosyvoice.enrol import Mode
    from tts_worker.engine.offline.speaker import Manner, Reader

    if bundle.config.sample_rate_hz != SAMPLE_RATE_HZ:
        raise BundleError(f"{bundle.path}: speaks at {bundle.config.sample_rate_hz} Hz; {SAMPLE_RATE_HZ} is supported")
    reader = Reader.of(bundle, Compat.reference() if args.compat == "reference" else Compat())
    root = args.voices or args.bundle / VOICES_DIR
    name = _voice_name(args, root)
    voice = reader.voice(root, name)
    manner = Manner(
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
        request, tokens = reader.conversion(voice, read_recording(args.source))
        return reader, name, voice, lambda speaker: speaker.convert(request, tokens, manner)
    requests = reader.requests(voice, _text(args), manner)

    def listen(piece: int, pieces: int, tokens: int) -> None:
        bar.update(f"speaking, part {piece + 1} of {pieces}", tokens / bundle.config.token_rate_hz)

    return reader, name, voice, lambda speaker: speaker.speak(requests, manner, listen)


def _load(args: argparse.Namespace, reader: Reader) -> OfflineSpeaker:
    from tts_worker.engine.offline.speaker import Backend, OfflineSpeaker

    return OfflineSpeaker.load(reader, device=args.device, backend=Backend(args.backend), graphs=args.graphs)


def _voice_name(args: argparse.Namespace, root: Path) -> str:
    if args.voice:
        return str(args.voice)
    names = stored_voices(root)
    if len(names) != 1:
        told = f"there are: {', '.join(names[:20])}" if names else "there are none; see: tts-worker voice --help"
        raise InvalidRequest(f"say which voice with --voice NAME; {told}")
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
class _Take:
    """What was made, without its sound."""

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
                "part": spoken.piece,
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
        wall_s, audio_s = perf_counter() - self.began_s, self.end_sample / SAMPLE_RATE_HZ
        return {
            "audio_s": round(audio_s, 3),
            "first_audio_ms": round(1000 * (self.first_s or 0.0), 1),
            "wall_s": round(wall_s, 3),
            "rtf": round(wall_s / audio_s, 4) if audio_s else None,
            "truncated": any(chunk["truncated"] for chunk in self.chunks),
            "chunks": self.chunks,
        }
