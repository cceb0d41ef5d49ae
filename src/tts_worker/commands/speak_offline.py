"""``tts-worker say --engine cosyvoice --bundle DIR``: one utterance through the streaming engine, without a worker.

Supports every mode of the models. Takes the arguments of ``say`` and the ones added here. ``--compat reference`` speaks
with the reference's algorithms instead (``engine.cosyvoice.reference``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tts_worker.audio.decode import read_recording
from tts_worker.audio.pcm import to_pcm
from tts_worker.audio.resampler import Resampler
from tts_worker.commands.common import given_text, open_sink
from tts_worker.commands.progress import Bar
from tts_worker.errors import InvalidRequest, UnspeakableText
from tts_worker.feature import find_converter
from tts_worker.settings import read_yaml
from tts_worker.text.control_tags import PHONEME_ALPHABETS, control_tags
from tts_worker.text.front_end import FrontEnd, shape
from tts_worker.text.language import LanguageDetector
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.normalizer import LANGUAGES, load_normalizer, needs_rewriting, normalize_segment
from tts_worker.text.pipeline import TextOptions, TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Audio, Segment, SynthesisParams
from tts_worker.voicepack.commands import open_bundle
from tts_worker.voicepack.installed import installed_voice
from tts_worker.voicepack.voice_file import VOICES_DIR, load_voice, stored_voices

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.bundle import Bundle
    from tts_worker.engine.cosyvoice.enrol import Mode, Speaker

MODES = {"zero-shot": "zero_shot", "cross-lingual": "cross_lingual", "instruct": "instruct2", "sft": "sft"}
CONVERSION = "vc"
MAX_TEXT_CHARS = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ``say`` does not define."""
    group = parser.add_argument_group("CosyVoice model directory (--engine cosyvoice)")
    group.add_argument("--bundle", type=Path, metavar="DIR", help="model directory (default: an installed voice)")
    group.add_argument(
        "--voices", type=Path, metavar="DIR", help=f"directory of stored voices (default: BUNDLE/{VOICES_DIR})"
    )
    group.add_argument(
        "--mode",
        choices=[*MODES, CONVERSION],
        help="synthesis mode (default: depends on the voice; vc: voice conversion of --source)",
    )
    group.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="vc: recording to convert (-: raw s16le mono on standard input, converted by --url while it arrives)",
    )
    group.add_argument("--source-rate", type=int, metavar="HZ", help="vc: sample rate of --source -")
    group.add_argument(
        "--stream", action="store_true", help="write each chunk at once (default: all audio when it is complete)"
    )
    group.add_argument(
        "--interleave", action="store_true", help="feed the text word by word, as if it were being written"
    )
    group.add_argument(
        "--compat",
        choices=["ours", "reference"],
        default="ours",
        help="speak with the streaming engine or with the reference's algorithms (default: ours)",
    )
    group.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    group.add_argument(
        "--backend",
        default="torch",
        metavar="NAME",
        help="back end of flow and vocoder: torch (default), onnxruntime or tensorrt",
    )
    group.add_argument(
        "--graphs", type=Path, metavar="DIR", help="directory written by `export onnx` (default: BUNDLE/onnx)"
    )
    group.add_argument("--rl", action="store_true", help="speak with llm.rl.pt (CosyVoice3)")
    group.add_argument(
        "--reading",
        choices=["own", "reference"],
        help="write out numbers as a worker does (own, default), or by CosyVoice's own front end",
    )
    group.add_argument(
        "--normalise", action="store_true", help="CosyVoice's front end with wetext (--reading reference)"
    )
    group.add_argument("--allow-special", action="store_true", help="interpret every special token in the text")


def run(args: argparse.Namespace) -> int:
    if args.bundle is None:
        args.voice, args.bundle = installed_voice(args.voice)
    check_conversion(args)
    if args.source_rate is not None:
        raise InvalidRequest("--source - needs a worker (--url): without one, give a file")
    return asyncio.run(_run(args))


def check_conversion(args: argparse.Namespace) -> None:
    """Raise InvalidRequest for arguments that contradict each other."""
    if (args.mode == CONVERSION) != (args.source is not None):
        raise InvalidRequest("--mode vc and --source FILE must be used together")
    if args.source is not None and (args.text or args.file):
        raise InvalidRequest("--mode vc converts --source and takes no text")
    if (args.source_rate is not None) != (args.source is not None and str(args.source) == "-"):
        raise InvalidRequest("--source - and --source-rate HZ must be used together")


@dataclass(frozen=True)
class _Chunk:
    """A chunk of audio and what the summary tells about it."""

    pcm: bytes
    report: dict[str, Any]


Speak = Callable[["_Result"], Iterator[_Chunk]]
"""Loads the weights and speaks; reports in the result when it begins and whether the speech was truncated."""


async def _run(args: argparse.Namespace) -> int:
    quiet = args.quiet or args.json
    with Bar(shown=not quiet, unit="s of speech") as bar:
        # Errors in voice or text are reported before the weights are loaded.
        bundle = open_bundle(args.bundle, rl=args.rl)
        name, speaker = _speaker(args, bundle)
        prepare = _prepare_reference if args.compat == "reference" else _prepare
        speak = prepare(args, bundle, name, speaker)
        if bundle.has_random_weights and not args.quiet:
            print("The weights of this model directory are random: the output is noise.", file=sys.stderr)
        bar.update("loading the networks")
        result = _Result(bar)
        place = await _write(args, speak(result), result)
    summary = {
        "family": bundle.config.family,
        "random_weights": bundle.has_random_weights,
        "voice": name,
        "mode": args.mode or ("instruct" if args.instruct else speaker.mode.value.replace("_", "-")),
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


async def _write(args: argparse.Namespace, chunks: Iterator[_Chunk], result: _Result) -> str:
    """Write the audio to the sink and return its name.

    A failure before the first chunk leaves no file; without ``--stream``, no failure does.
    """
    if not args.stream:
        chunks = iter(list(chunks))
    chunk = next(chunks, None)
    sink, place = await open_sink(args)
    try:
        while chunk is not None:
            result.add(chunk)
            await sink.write(chunk.pcm)
            chunk = next(chunks, None)
    except BaseException:
        await sink.abort()
        raise
    await sink.close()
    return place


def _speaker(args: argparse.Namespace, bundle: Bundle) -> tuple[str, Speaker]:
    """Load the voice and check that it supports the mode."""
    from tts_worker.engine.cosyvoice.enrol import Mode, Speaker
    from tts_worker.engine.cosyvoice.loader import bundle_voices
    from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer

    tokenizer = TextTokenizer.from_bundle(bundle)
    root = args.voices or args.bundle / VOICES_DIR
    stored = stored_voices(root)
    bundled = bundle_voices(bundle) if args.voice not in stored else {}
    name = _voice_name(args, stored, bundled)
    voice = bundled[name] if name in bundled else load_voice(root, name)
    speaker = Speaker(voice, bundle.config, tokenizer)
    if args.source is not None:
        speaker.request("", mode=Mode.CROSS_LINGUAL)
    else:
        speaker.request("", mode=_mode(args), instruction=args.instruct or "")
    return name, speaker


def _mode(args: argparse.Namespace) -> Mode | None:
    from tts_worker.engine.cosyvoice.enrol import Mode

    return Mode(MODES[args.mode]) if args.mode in MODES else None


def _voice_name(args: argparse.Namespace, stored: Collection[str], bundled: Collection[str]) -> str:
    """Return the voice that is meant: without ``--voice`` the only stored one, or the model's only speaker."""
    if args.voice:
        return str(args.voice)
    names = [*stored] or [*bundled]
    if len(names) != 1:
        every = sorted({*stored, *bundled})
        hint = f"available: {', '.join(every[:20])}" if every else "none is stored; see: tts-worker voice --help"
        raise InvalidRequest(f"select a voice with --voice NAME; {hint}")
    return names[0]


# -- with the streaming engine ----------------------------------------------------------------------------------------


def _prepare(args: argparse.Namespace, bundle: Bundle, name: str, speaker: Speaker) -> Speak:
    """Prepare speech of the streaming engine: everything that needs no weights."""
    from tts_worker.engine.cosyvoice.audio_frontend import PromptFrontend
    from tts_worker.engine.cosyvoice.engine import SPEED_RANGE
    from tts_worker.engine.cosyvoice.offline import load_offline_engine, speak, voice_in_mode

    if not SPEED_RANGE[0] <= args.speed <= SPEED_RANGE[1]:
        raise InvalidRequest(f"speed must be {SPEED_RANGE[0]:g} to {SPEED_RANGE[1]:g}")
    segments: list[Segment] = []
    tokens: list[tuple[int, ...]] = []
    if args.source is None:
        segments = _segments(args, speaker)
    else:
        frontend = PromptFrontend(bundle)
        if (converter := find_converter()) is None:
            raise InvalidRequest("--mode vc: this installation lacks the feature conversion")
        tokens = [frontend.window_tokens(window) for window in converter.windows(args.source)]
    starts = [segment.start for segment in segments]
    params = SynthesisParams(name, args.speed, args.seed, args.language, args.instruct or None)

    def chunks(result: _Result) -> Iterator[_Chunk]:
        engine = load_offline_engine(
            args.bundle,
            {name: voice_in_mode(speaker.voice, _mode(args))},
            rl=args.rl,
            device=args.device,
            backend=args.backend,
            graphs_dir=args.graphs,
            text_mode="interleaved" if args.interleave else "clause",
            allow_special=args.allow_special,
        )
        try:
            result.begin()
            for event in speak(engine, params, segments, tokens):
                if isinstance(event, Audio):
                    meta = event.meta
                    part = max(0, bisect_right(starts, meta.text_start) - 1)
                    result.show_progress(f"speaking, part {part + 1} of {len(starts) or 1}", event.samples)
                    report = {"part": part, "text_start": meta.text_start, "text_end": meta.text_end}
                    yield _Chunk(event.pcm, {**report, "stages_ms": dict(meta.stages_ms)})
                else:
                    result.truncated = event.truncated is not None
        finally:
            engine.close()

    return chunks


def _segments(args: argparse.Namespace, speaker: Speaker) -> list[Segment]:
    """Read the text as a session does.

    Raises:
        InvalidRequest: The text is too long, or an option is invalid.
        UnspeakableText: The text contains nothing to speak.
        MissingExtra: ``--normalise`` needs wetext.
    """
    from tts_worker.engine.cosyvoice.tokenizer import CONTROL_TAGS, phonemes

    text = _text(args)
    known = phonemes(speaker.config.tokenizer_version)
    options = TextOptions(
        markdown=not (args.plain or args.allow_special),
        drop_reasoning=not args.allow_special,
        language=args.language,
        languages=speaker.config.languages,
        control_tags=None if args.allow_special else control_tags(CONTROL_TAGS, known),
        alphabets=PHONEME_ALPHABETS if known else ("ipa",),
        by_word=args.interleave,
    )
    lexicon = Lexicon.from_mapping(read_yaml(args.lexicon)) if args.lexicon is not None else None
    by_reference = args.normalise or args.reading == "reference"
    verbalizer = None
    if not (by_reference or args.allow_special):
        verbalizer = Verbalizer(speaker.config.languages, args.language, shape=None if args.interleave else shape)
    pipeline = TextPipeline(options, lexicon, verbalizer)
    segments = [*pipeline.feed(text), *pipeline.end()]
    if not any(char.isalnum() for segment in segments for char in segment.text):
        raise UnspeakableText("there is nothing in this text that can be spoken")
    return _rewritten(args, segments, speaker) if by_reference else segments


def _rewritten(args: argparse.Namespace, segments: list[Segment], speaker: Speaker) -> list[Segment]:
    """Apply the rules of the reference's front end, after those of wetext with ``--normalise``."""
    normalize = load_normalizer() if args.normalise else None
    languages = speaker.config.languages
    front_end = None if args.interleave or args.allow_special else FrontEnd(languages, args.language)
    detector = front_end or LanguageDetector(languages, args.language)
    rewritten = []
    for segment in segments:
        language = detector.detect(segment.text)
        if normalize is not None and language in LANGUAGES and needs_rewriting(segment.text, language):
            segment = normalize_segment(segment, normalize, language)
        rewritten.append(segment if front_end is None else front_end.apply(segment, language))
    return rewritten


# -- with the reference's algorithms ----------------------------------------------------------------------------------


def _prepare_reference(args: argparse.Namespace, bundle: Bundle, _name: str, speaker: Speaker) -> Speak:
    """Prepare speech of the reference's algorithms: everything that needs no weights."""
    from tts_worker.engine.cosyvoice.reference.speech import ReferenceOptions, ReferenceSpeech

    if args.backend != "torch":
        raise InvalidRequest("--compat reference runs on PyTorch only: leave --backend out")
    options = ReferenceOptions(
        mode=_mode(args),
        instruction=args.instruct or "",
        seed=args.seed,
        speed=args.speed,
        stream=args.stream,
        interleave=args.interleave,
        allow_special=args.allow_special,
        normalise=args.normalise,
    )
    speech = ReferenceSpeech(bundle, speaker, options)
    if args.source is None:
        speech.read(_text(args))
    else:
        speech.convert(read_recording(args.source))

    def chunks(result: _Result) -> Iterator[_Chunk]:
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
            yield _Chunk(pcm + resampler.flush() if chunk.final else pcm, report)

    return chunks


# -- input and output -------------------------------------------------------------------------------------------------


def _text(args: argparse.Namespace) -> str:
    """Read the text. Raises InvalidRequest if it cannot be read or is too long."""
    text = given_text(args)
    if text is None:
        text = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(f"the text has {len(text)} characters; at most {MAX_TEXT_CHARS} are spoken offline")
    return text


@dataclass
class _Result:
    """Measurements of a synthesis, without the audio.

    Attributes:
        bar: Shows the progress.
        began_s: When the weights were loaded.
        first_s: Time from then to the first audio that is written.
        spoken_samples: Samples that were computed.
        end_sample: Samples that were written.
        truncated: Whether the speech ended before the text.
        chunks: What is reported for each chunk.
    """

    bar: Bar
    began_s: float = field(default_factory=perf_counter)
    first_s: float | None = None
    spoken_samples: int = 0
    end_sample: int = 0
    truncated: bool = False
    chunks: list[dict[str, Any]] = field(default_factory=list)

    def begin(self) -> None:
        """Start measuring."""
        self.began_s = perf_counter()

    def show_progress(self, label: str, samples: int) -> None:
        self.spoken_samples += samples
        self.bar.update(label, self.spoken_samples / SAMPLE_RATE_HZ)

    def add(self, chunk: _Chunk) -> None:
        self.first_s = self.first_s or perf_counter() - self.began_s
        start_sample = self.end_sample
        self.end_sample += len(chunk.pcm) // BYTES_PER_SAMPLE
        report = dict(chunk.report)
        stages_ms = {stage: round(ms, 2) for stage, ms in report.pop("stages_ms").items()}
        place = {"index": len(self.chunks), "start_sample": start_sample, "end_sample": self.end_sample}
        self.chunks.append({**place, **report, "stages_ms": stages_ms})

    def summary(self) -> dict[str, Any]:
        wall_s = perf_counter() - self.began_s
        audio_s = self.end_sample / SAMPLE_RATE_HZ
        return {
            "audio_s": round(audio_s, 3),
            "first_audio_ms": round(1000 * (self.first_s or 0.0), 1),
            "wall_s": round(wall_s, 3),
            "rtf": round(wall_s / audio_s, 4) if audio_s else None,
            "truncated": self.truncated,
            "chunks": self.chunks,
        }
