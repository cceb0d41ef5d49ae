"""``tts-worker say --engine cosyvoice --bundle DIR``: one utterance through the streaming engine, without a worker.

Supports every mode of the models. Takes the arguments of ``say`` and the ones added here;
``--set engines.cosyvoice.KEY=VALUE`` sets the engine's options as in a worker. With ``--url`` a worker converts speech.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tts_worker.commands.common import OFFLINE_ENGINE, given_text, open_sink, settings_from
from tts_worker.commands.model_directory import open_bundle
from tts_worker.commands.progress import Bar
from tts_worker.errors import InvalidRequest, MissingExtra, UnspeakableText
from tts_worker.feature import find_converter, find_file_signer, find_marker
from tts_worker.features.offline.conversion import run_conversion
from tts_worker.front_end.normalizer import LANGUAGES, load_normalizer, needs_rewriting, normalize_segment
from tts_worker.front_end.rules import FrontEnd, shape
from tts_worker.settings import Settings, read_yaml
from tts_worker.settings.engines import CosyVoiceEngineSettings
from tts_worker.text.control_tags import PHONEME_ALPHABETS, control_tags
from tts_worker.text.language import LanguageDetector
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Audio, Segment, SynthesisParams
from tts_worker.voices.files import VOICES_DIR, load_voice, stored_voices
from tts_worker.voices.installed import installed_voice

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle
    from tts_worker.engine.cosyvoice.voices.speaker import Mode, Speaker

log = logging.getLogger(__name__)

MODES = {"zero-shot": "zero_shot", "cross-lingual": "cross_lingual", "instruct": "instruct2", "sft": "sft"}
CONVERSION = "vc"
MAX_TEXT_CHARS = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ``say`` does not define."""
    group = parser.add_argument_group("CosyVoice model directory (--engine cosyvoice)")
    group.add_argument("--bundle", type=Path, metavar="DIR", help="model directory (default: an installed voice)")
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


def run(args: argparse.Namespace) -> int | None:
    """Speak with a model directory, or convert with a worker; None if the arguments ask for neither."""
    if args.bundle is not None or args.engine == OFFLINE_ENGINE:
        return _speak_alone(args)
    if args.mode != CONVERSION and args.source is None:
        return None
    if args.url is None:
        raise InvalidRequest("--mode vc needs a worker (--url) or a model directory (--bundle) that converts")
    check_conversion(args)
    return run_conversion(args)


def _speak_alone(args: argparse.Namespace) -> int:
    if args.bundle is None:
        args.voice, args.bundle = installed_voice(args.voice)
    check_conversion(args)
    if args.source_rate is not None:
        raise InvalidRequest("--source - needs a worker (--url): without one, give a file")
    settings = settings_from(args)
    engine = settings.engines[OFFLINE_ENGINE]
    if not isinstance(engine, CosyVoiceEngineSettings):
        raise InvalidRequest(f"--set engines.{OFFLINE_ENGINE}.kind: must be cosyvoice")
    bundle = open_bundle(engine.bundle, rl=engine.rl)

    by_reference = settings.text.reading == "reference"

    def prepare(name: str, speaker: Speaker) -> Speak:
        return _prepare(args, bundle, engine, name, speaker, by_reference=by_reference)

    return speak_bundle(args, bundle, engine.voices, prepare, settings)


def check_conversion(args: argparse.Namespace) -> None:
    """Raise InvalidRequest for arguments that contradict each other."""
    if (args.mode == CONVERSION) != (args.source is not None):
        raise InvalidRequest("--mode vc and --source FILE must be used together")
    if args.source is not None and (args.text or args.file):
        raise InvalidRequest("--mode vc converts --source and takes no text")
    if (args.source_rate is not None) != (args.source is not None and str(args.source) == "-"):
        raise InvalidRequest("--source - and --source-rate HZ must be used together")


@dataclass(frozen=True)
class Chunk:
    """A chunk of audio and what the summary tells about it."""

    pcm: bytes
    report: dict[str, Any]


Speak = Callable[["Result"], Iterator[Chunk]]
"""Loads the weights and speaks; reports in the result when it begins and whether the speech was truncated."""


def speak_bundle(
    args: argparse.Namespace,
    bundle: Bundle,
    voices: Path | None,
    prepare: Callable[[str, Speaker], Speak],
    settings: Settings | None = None,
) -> int:
    """Speak as ``args`` say, write the audio and the summary, and return the exit code.

    Args:
        args: Those of ``say``.
        bundle: Model directory.
        voices: Directory of stored voices; None: inside the model directory.
        prepare: Does everything that needs no weights; takes the voice's name and the voice.
        settings: What marks the audio and signs the file; None leaves them as they are.
    """
    return asyncio.run(_run(args, bundle, voices or bundle.path / VOICES_DIR, prepare, settings))


async def _run(
    args: argparse.Namespace,
    bundle: Bundle,
    voices: Path,
    prepare: Callable[[str, Speaker], Speak],
    settings: Settings | None,
) -> int:
    quiet = args.quiet or args.json
    with Bar(shown=not quiet, unit="s of speech") as bar:
        # Errors in voice or text are reported before the weights are loaded.
        name, speaker = _speaker(args, bundle, voices)
        speak = prepare(name, speaker)
        if bundle.has_random_weights and not args.quiet:
            print("The weights of this model directory are random: the output is noise.", file=sys.stderr)
        bar.update("loading the networks")
        result = Result(bar)
        place = await _write(args, speak(result), result, settings)
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


async def _write(args: argparse.Namespace, chunks: Iterator[Chunk], result: Result, settings: Settings | None) -> str:
    """Write the audio to the sink and return its name.

    A failure before the first chunk leaves no file; without ``--stream``, no failure does.
    """
    if not args.stream:
        chunks = iter(list(chunks))
    chunk = next(chunks, None)
    make_marker = None if settings is None else find_marker(settings)
    marker = None if make_marker is None else make_marker()
    sink, place = await open_sink(args, None if settings is None else find_file_signer(settings))
    try:
        while chunk is not None:
            result.add(chunk)
            await sink.write(chunk.pcm if marker is None else marker.process(chunk.pcm))
            chunk = next(chunks, None)
        if marker is not None:
            await sink.write(marker.flush())
    except BaseException:
        await sink.abort()
        raise
    await sink.close()
    return place


def _speaker(args: argparse.Namespace, bundle: Bundle, root: Path) -> tuple[str, Speaker]:
    """Load the voice, of those stored in ``root`` or of the model, and check that it supports the mode."""
    from tts_worker.engine.cosyvoice.loader import bundle_voices
    from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
    from tts_worker.engine.cosyvoice.voices.speaker import Mode, Speaker

    tokenizer = TextTokenizer.from_bundle(bundle)
    stored = stored_voices(root)
    bundled = bundle_voices(bundle) if args.voice not in stored else {}
    name = _voice_name(args, stored, bundled)
    voice = bundled[name] if name in bundled else load_voice(root, name)
    speaker = Speaker(voice, bundle.config, tokenizer)
    if args.source is not None:
        speaker.request("", mode=Mode.CROSS_LINGUAL)
    else:
        speaker.request("", mode=mode_of(args), instruction=args.instruct or "")
    return name, speaker


def mode_of(args: argparse.Namespace) -> Mode | None:
    """Return the mode that is asked for; None: the voice's default."""
    from tts_worker.engine.cosyvoice.voices.speaker import Mode

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


def _prepare(
    args: argparse.Namespace,
    bundle: Bundle,
    settings: CosyVoiceEngineSettings,
    name: str,
    speaker: Speaker,
    *,
    by_reference: bool,
) -> Speak:
    """Prepare speech of the streaming engine: everything that needs no weights."""
    from tts_worker.engine.cosyvoice.audio.prosody import SPEED_RANGE
    from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend
    from tts_worker.features.offline.engine import load_offline_engine, speak, voice_in_mode

    if not SPEED_RANGE[0] <= args.speed <= SPEED_RANGE[1]:
        raise InvalidRequest(f"speed must be {SPEED_RANGE[0]:g} to {SPEED_RANGE[1]:g}")
    segments: list[Segment] = []
    tokens: list[tuple[int, ...]] = []
    if args.source is None:
        segments = _segments(args, speaker, by_word=settings.text_mode == "interleaved", by_reference=by_reference)
    else:
        frontend = PromptFrontend(bundle)
        if (converter := find_converter()) is None:
            raise InvalidRequest("--mode vc: this installation lacks the feature conversion")
        tokens = [frontend.window_tokens(window) for window in converter.windows(args.source)]
    starts = [segment.start for segment in segments]
    params = SynthesisParams(name, args.speed, args.seed, args.language, args.instruct or None)

    def chunks(result: Result) -> Iterator[Chunk]:
        voice = voice_in_mode(speaker.voice, mode_of(args))
        engine = load_offline_engine(bundle.path, {name: voice}, **_engine_options(settings))
        try:
            result.begin()
            for event in speak(engine, params, segments, tokens):
                if isinstance(event, Audio):
                    meta = event.meta
                    part = max(0, bisect_right(starts, meta.text_start) - 1)
                    result.show_progress(f"speaking, part {part + 1} of {len(starts) or 1}", event.samples)
                    report = {"part": part, "text_start": meta.text_start, "text_end": meta.text_end}
                    yield Chunk(event.pcm, {**report, "stages_ms": dict(meta.stages_ms)})
                else:
                    result.truncated = event.truncated is not None
        finally:
            engine.close()

    return chunks


def _engine_options(settings: CosyVoiceEngineSettings) -> dict[str, Any]:
    """Return the options of an engine with one slot; it runs on the CPU unless a device is set."""
    own = {"kind", "bundle", "voices", "max_utterances"}
    options = settings.model_dump(exclude=own)
    return options if "device" in settings.model_fields_set else {**options, "device": "cpu"}


def _segments(args: argparse.Namespace, speaker: Speaker, *, by_word: bool, by_reference: bool) -> list[Segment]:
    """Read the text as a session does.

    Raises:
        InvalidRequest: The text is too long, or an option is invalid.
        UnspeakableText: The text contains nothing to speak.
    """
    from tts_worker.engine.cosyvoice.tokens.tokenizer import CONTROL_TAGS, phonemes

    text = read_text(args)
    known = phonemes(speaker.config.tokenizer_version)
    options = TextOptions(
        markdown=not args.plain,
        language=args.language,
        languages=speaker.config.languages,
        control_tags=control_tags(CONTROL_TAGS, known),
        alphabets=PHONEME_ALPHABETS if known else ("ipa",),
        by_word=by_word,
    )
    lexicon = Lexicon.from_mapping(read_yaml(Path(args.lexicon))) if args.lexicon is not None else None
    verbalizer = None
    if not by_reference:
        verbalizer = Verbalizer(speaker.config.languages, args.language, shape=None if by_word else shape)
    pipeline = TextPipeline(options, lexicon, verbalizer)
    segments = [*pipeline.feed(text), *pipeline.end()]
    if not any(char.isalnum() for segment in segments for char in segment.text):
        raise UnspeakableText("there is nothing in this text that can be spoken")
    return _read_by_reference(args, segments, speaker, by_word=by_word) if by_reference else segments


def _read_by_reference(
    args: argparse.Namespace, segments: list[Segment], speaker: Speaker, *, by_word: bool
) -> list[Segment]:
    """Apply the rules of the reference's front end, after those of wetext if it is installed."""
    try:
        normalize = load_normalizer()
    except MissingExtra as error:
        log.warning("text.reading: reference has only its own rules: %s", error)
        normalize = None
    languages = speaker.config.languages
    front_end = None if by_word else FrontEnd(languages, args.language)
    detector = front_end or LanguageDetector(languages, args.language)
    rewritten = []
    for segment in segments:
        language = detector.detect(segment.text)
        if normalize is not None and language in LANGUAGES and needs_rewriting(segment.text, language):
            segment = normalize_segment(segment, normalize, language)
        rewritten.append(segment if front_end is None else front_end.apply(segment, language))
    return rewritten


# -- input and output -------------------------------------------------------------------------------------------------


def read_text(args: argparse.Namespace) -> str:
    """Read the text. Raises InvalidRequest if it cannot be read or is too long."""
    text = given_text(args)
    if text is None:
        text = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(f"the text has {len(text)} characters; at most {MAX_TEXT_CHARS} are spoken offline")
    return text


@dataclass
class Result:
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

    def add(self, chunk: Chunk) -> None:
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
