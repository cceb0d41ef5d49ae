"""Turns the options of a session into a session: checks them, and connects text, engine and output.

Admission is the task of ``session.hub``, which asks for a ``SessionPlan`` before it takes a slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from tts_worker.audio.encoders import FileSigner
from tts_worker.audio.output import Marker, OutputFormat, OutputStage
from tts_worker.errors import InvalidRequest, MissingExtra
from tts_worker.front_end.rules import FrontEnd, shape
from tts_worker.session.engine_port import EnginePort
from tts_worker.session.frame_clock import FrameClock
from tts_worker.session.language_routing import LanguageRouter
from tts_worker.session.link import EngineLink
from tts_worker.session.loudness import VoiceLoudness
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.session.normalizing import SegmentNormalizer, SegmentReader
from tts_worker.session.reading import ReadScheduler
from tts_worker.session.record import SessionObserver, UtteranceExporter
from tts_worker.session.session import LocalSession, SessionHooks
from tts_worker.session.timers import SessionTimeouts
from tts_worker.text.control_tags import PHONEME_ALPHABETS, control_tags
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.types import SAMPLE_RATE_HZ, Encoding, Segment, SessionOptions, SynthesisParams
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.routing import VoiceRequest, choose_voice

_CREDITS_PER_WINDOW = 5
"""Portions in which the credit of a window is returned while the engine is well ahead of the client."""

_WINDOW_MARGIN_MS = 80
"""Beyond two frames, the smallest credit of an utterance: marker, resampler and limiter look ahead by less than 30 ms,
and an engine emits no chunk below 100 ms while a larger one is on its way."""

Reading = Literal["own", "reference"]
"""How CosyVoice's Chinese and English text becomes words, see ``settings.TextSettings``."""

_READ_BY_REFERENCE = ("en", "zh", "yue")
"""Languages that the reference's front end reads."""

_READ_CHARS = 16
"""Text read between two looks at the clock. A character takes 2 to 10 us, with a hostile lexicon 100."""


@dataclass(frozen=True, slots=True)
class HubConfig:
    """Defaults and bounds of all sessions, and what they share. See ``settings.SessionSettings``.

    Milliseconds, characters and LUFS. ``longest_pause_s`` is that of a transport with a longer pause timeout.
    ``normalizer`` is the wetext of the reference's reading; None has none.
    ``traces`` exports ended utterances; None exports none. ``make_marker`` returns what marks the audio of an
    utterance, and ``file_signer`` signs the files that are sent whole; None does neither.
    """

    max_sessions: int = 64
    max_open_sessions: int = 1_024
    slot_idle_s: float = 2.0
    end_idle_s: float = 60.0
    lead_ms: float = 40.0
    window_ms: float = 1_500.0
    frame_ms: int = 20
    max_utterance_chars: int = 200_000
    max_queued_utterances: int = 16
    timeouts: SessionTimeouts = field(default_factory=SessionTimeouts)
    longest_pause_s: float = 0.0
    loudness_lufs: float | None = None
    text: TextOptions = field(default_factory=TextOptions)
    lexicon: Lexicon = field(default_factory=Lexicon)
    reading: Reading = "own"
    normalizer: SegmentNormalizer | None = None
    route_by_language: bool = True
    traces: UtteranceExporter | None = None
    make_marker: Callable[[], Marker] | None = None
    file_signer: FileSigner | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the audio of a session is sent.

    Attributes:
        output_format: Rate and encoding.
        frame_ms: Duration of a frame.
        lead_s: Playout lead of the worker's pacing; None where the worker does not pace.
        is_paced: Whether audio is taken at playback pace, by the worker's clock or by that of the client.
    """

    output_format: OutputFormat
    frame_ms: int
    lead_s: float | None
    is_paced: bool

    @classmethod
    def of(cls, options: SessionOptions, config: HubConfig) -> Delivery:
        """Return how the audio of a session with these options is sent. Raises InvalidRequest."""
        frame_ms = options.frame_ms if options.frame_ms is not None else config.frame_ms
        if not 5 <= frame_ms <= 200:
            raise InvalidRequest("frame_ms must be 5 to 200")
        lead_ms = options.lead_ms if options.lead_ms is not None else config.lead_ms
        if not 0 <= lead_ms <= 10_000:
            raise InvalidRequest("lead_ms must be 0 to 10000")
        lead_s = None
        if options.realtime and not options.raw_chunks:
            # A lead below 1.5 frames would leave no time between two frames.
            lead_s = max(lead_ms, 1.5 * frame_ms) / 1000
        is_paced = lead_s is not None or options.own_clock or options.buffered
        return cls(OutputFormat.of(options.sample_rate, options.encoding), frame_ms, lead_s, is_paced)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A session that can be built: its options are valid, and its engine can take its commands.

    Attributes:
        options: The options.
        params: Parameters of its first utterances.
        voice: Their voice.
        delivery: How its audio is sent.
        timeouts: Its time limits.
        engine: The engine of ``voice``.
        make_text: Builds the text pipeline of an utterance.
        make_output: Builds the output stage of an utterance; None sends the audio of the engine as it is.
    """

    options: SessionOptions
    params: SynthesisParams
    voice: VoiceDescription
    delivery: Delivery
    timeouts: SessionTimeouts
    engine: EnginePort
    make_text: Callable[[SynthesisParams], TextPipeline]
    make_output: Callable[[SynthesisParams], OutputStage] | None


class SessionFactory:
    """Plans and builds the sessions of a worker.

    Args:
        voices: The voice catalog.
        config: Defaults and bounds.
        engines: The running engines by name; grows and shrinks with them.
        on_routed: Called with the name of another engine than a session's, to which an utterance is routed.

    Attributes:
        loudness: Brings all voices to one loudness; None leaves their levels as they are.
    """

    def __init__(
        self,
        voices: VoiceCatalog,
        config: HubConfig,
        engines: Mapping[str, EnginePort],
        on_routed: Callable[[str], None],
    ) -> None:
        self._voices = voices
        self._config = config
        self._engines = engines
        self._on_routed = on_routed
        loop = asyncio.get_running_loop()
        self._read_scheduler = ReadScheduler(loop)
        self._frame_clock = FrameClock(loop)
        self.loudness = None if config.loudness_lufs is None else VoiceLoudness(config.loudness_lufs, self._segments)

    # -- options ------------------------------------------------------------------------------------------------------

    def plan(self, options: SessionOptions, params: SynthesisParams, lexicon: Lexicon | None) -> SessionPlan:
        """Check ``options`` and return what a session with them consists of. It holds nothing.

        Args:
            options: The options.
            params: The result of ``params`` for them; the engine of its voice is running.
            lexicon: The lexicon of the session.

        Raises:
            InvalidRequest: A value is out of range.
            MissingExtra: Text normalization or the encoding needs a library that is not installed.
        """
        if options.normalize and self._config.reading == "reference" and self._config.normalizer is None:
            raise MissingExtra("text normalization", "normalize")
        voice = self._voices.get(params.voice)
        engine = self._engines[voice.engine]
        delivery = Delivery.of(options, self._config)
        make_output = _output_factory(delivery, options, self._gains(engine), self._config.make_marker)
        make_text = self._text_factory(options, lexicon)
        timeouts = self.timeouts(options)
        return SessionPlan(options, params, voice, delivery, timeouts, engine, make_text, make_output)

    def params(self, options: SessionOptions) -> SynthesisParams:
        """Validate the options and choose a voice (``voices.routing``).

        Raises:
            UnknownVoice: There is no such voice.
            UnknownModel: There is no such model.
            InvalidRequest: The named value is out of range.
        """
        voice = choose_voice(self._voices, VoiceRequest.of(options))
        slowest, fastest = voice.info.speed_range
        if not slowest <= options.speed <= fastest:  # also refuses NaN
            raise InvalidRequest(f"speed must be {slowest:g} to {fastest:g} for voice {voice.name}")
        if not 0 <= options.seed < 2**63:
            raise InvalidRequest("seed must be 0 to 2^63 - 1")
        return options.voicing(voice.name)

    def timeouts(self, options: SessionOptions) -> SessionTimeouts:
        """Return the checked time limits of ``options``, which may only shorten those of the settings.

        Raises:
            InvalidRequest: A value is out of range.
        """
        defaults = self._config.timeouts
        pause_s = options.pause_timeout_s if options.pause_timeout_s is not None else defaults.pause_s
        text_idle_s = options.text_idle_timeout_s if options.text_idle_timeout_s is not None else defaults.text_idle_s
        if not 0 < pause_s <= 3_600:
            raise InvalidRequest("pause_timeout_s must be above 0 and at most 3600")
        if not 0 < text_idle_s <= 3_600:
            raise InvalidRequest("text_idle_timeout_s must be above 0 and at most 3600")
        flush_after_s = options.flush_after_ms / 1000 if options.flush_after_ms is not None else defaults.flush_after_s
        if not 0 <= flush_after_s <= 60:
            raise InvalidRequest("flush_after_ms must be 0 to 60000")
        pause_s = min(pause_s, max(defaults.pause_s, self._config.longest_pause_s))
        return SessionTimeouts(pause_s, min(text_idle_s, defaults.text_idle_s), flush_after_s)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def build(
        self,
        name: str,
        plan: SessionPlan,
        hooks: SessionHooks,
        observe: Callable[[str, str], SessionObserver],
        generation: int,
    ) -> tuple[LocalSession, LanguageRouter | None]:
        """Build a session.

        Args:
            name: Its id.
            plan: What it consists of.
            hooks: What it asks and tells the hub.
            observe: Returns the observer of an engine and voice.
            generation: That of the last utterance of the session that it replaces, or 0.

        Returns:
            The session, and what chooses the voices of its utterances; None if all have the voice of the session.
        """
        router = None
        if self._config.route_by_language:
            router = LanguageRouter(self._voices, plan.options, plan.voice.engine, self._is_ready, self._on_routed)
        machine = SessionMachine(
            name,
            plan.params,
            plan.make_text,
            self._machine_config(plan),
            plan.make_output,
            None if router is None else router.route,
            generation=generation,
        )
        session = LocalSession(
            machine,
            self._link(plan),
            lead_s=plan.delivery.lead_s,
            observe=observe,
            timeouts=plan.timeouts,
            hooks=hooks,
            engine_of=lambda voice: self._voices.get_in_use(voice).engine,
            unsupported_of=self._unsupported_expressions,
            read_scheduler=self._read_scheduler,
            frame_clock=self._frame_clock,
            output_format=plan.delivery.output_format,
            traces=self._config.traces,
        )
        session.join_trace(plan.options.traceparent)
        return session, router

    def _unsupported_expressions(self, name: str) -> tuple[str, ...]:
        voice = self._voices.get_in_use(name)
        return voice.info.unsupported_expressions(follows_instructions="instruct" in voice.capabilities)

    def _machine_config(self, plan: SessionPlan) -> MachineConfig:
        config = self._config
        options = plan.options
        delivery = plan.delivery
        # The engine goes on with a window in which a frame, less what a filter holds back, waits for its last samples.
        window_ms = max(config.window_ms, 2 * delivery.frame_ms + _WINDOW_MARGIN_MS)
        window_samples = int(window_ms * SAMPLE_RATE_HZ / 1000)
        return MachineConfig(
            window_samples=window_samples,
            large_credit_samples=window_samples // _CREDITS_PER_WINDOW,
            frame_samples=None if options.raw_chunks else delivery.output_format.frame_samples(delivery.frame_ms),
            max_text_chars=config.max_utterance_chars,
            max_queued_utterances=config.max_queued_utterances,
            read_chars=_READ_CHARS,
            paced=delivery.is_paced,
            buffered=options.buffered and delivery.lead_s is None,
            reports_playback=options.reports_playback,
            alignment=plan.voice.info.alignment,
        )

    # -- text ---------------------------------------------------------------------------------------------------------

    def _text_factory(
        self, options: SessionOptions, session_lexicon: Lexicon | None
    ) -> Callable[[SynthesisParams], TextPipeline]:
        """Return what builds the text pipeline of an utterance."""
        defaults = self._config.text
        lexicons: dict[str, Lexicon | None] = {}  # merged lexicon by voice
        reads = options.normalize is not False

        def make_text(params: SynthesisParams) -> TextPipeline:
            voice = self._voices.get_in_use(params.voice)
            if voice.name not in lexicons:
                levels = [level for level in (self._config.lexicon, voice.lexicon, session_lexicon) if level]
                lexicons[voice.name] = Lexicon.merged(*levels) if levels else None
            text = replace(
                defaults,
                markdown=defaults.markdown if options.markdown is None else options.markdown,
                urls=defaults.urls if options.urls is None else options.urls,
                # A multilingual voice does not tell the language of the text: the English rules apply.
                language=params.language or (voice.languages[0] if len(voice.languages) == 1 else None),
                # A voice reads what its engine does, also beyond its description.
                languages=(*voice.languages, *voice.info.languages),
                by_word=voice.info.text_by_word,
                control_tags=control_tags(voice.info.control_tags, voice.info.phonemes),
                cuts_styles="style" in voice.info.expressions and not voice.info.moods,
                alphabets=PHONEME_ALPHABETS if voice.info.phonemes else ("ipa",),
            )
            return TextPipeline(text, lexicons[voice.name], self._verbalizer(voice, params) if reads else None)

        return make_text

    def _verbalizer(self, voice: VoiceDescription, params: SynthesisParams) -> Verbalizer:
        """Return what reads the segments of an utterance; the reference's front end, if that reads them, follows."""
        if not voice.info.front_end:
            return Verbalizer(voice.languages, params.language, others=voice.info.languages)
        if self._config.reading == "reference":
            return Verbalizer(voice.languages, params.language, unread=_READ_BY_REFERENCE)
        return Verbalizer(voice.languages, params.language, shape=shape)

    def _segments(self, params: SynthesisParams, text: str) -> Sequence[Segment]:
        """Return the segments of a whole text."""
        pipeline = self._text_factory(SessionOptions(), None)(params)
        return [*pipeline.feed(text), *pipeline.end()]

    # -- engines ------------------------------------------------------------------------------------------------------

    def _is_ready(self, engine: str) -> bool:
        return engine in self._engines and self._engines[engine].ready

    def _link(self, plan: SessionPlan) -> EngineLink:
        """Return the connection of a session to the engine of its voice, and to those that speak other languages."""
        name, engine = plan.voice.engine, plan.engine

        def route(voice: str) -> tuple[str, EnginePort]:
            other = self._voices.get_in_use(voice).engine
            return (other, self._engines[other]) if other != name and other in self._engines else (name, engine)

        def reader_of(engine: EnginePort, params: SynthesisParams) -> SegmentReader | None:
            if not engine.info.front_end:
                return None
            front_end = FrontEnd(self._voices.get_in_use(params.voice).languages, params.language)
            return SegmentReader(self._config.normalizer, front_end)

        if self._config.reading != "reference" or plan.options.normalize is False:
            return EngineLink(route, self.loudness)
        return EngineLink(route, self.loudness, reader_of)

    # -- output -------------------------------------------------------------------------------------------------------

    def _gains(self, engine: EnginePort) -> Callable[[str], float] | None:
        """Return what tells the gains of the voices of a session on an engine; None if their level stays as it is."""
        loudness = self.loudness
        if loudness is None or engine.info.test_signal:
            return None
        engines: dict[str, str] = {}  # by voice

        def gain(voice: str) -> float:
            if voice not in engines:
                engines[voice] = self._voices.get_in_use(voice).engine
            return loudness.gain(engines[voice], voice)

        return gain


def _output_factory(
    delivery: Delivery,
    options: SessionOptions,
    gain: Callable[[str], float] | None,
    make_marker: Callable[[], Marker] | None,
) -> Callable[[SynthesisParams], OutputStage] | None:
    """Return what builds the output stage of an utterance; None if the engine's audio is sent as it is.

    Raises:
        InvalidRequest: The encoding does not fit the other options.
        MissingExtra: The library of the encoding is not installed.
    """
    output_format = delivery.output_format
    frame_ms = delivery.frame_ms
    if output_format.is_native and gain is None and make_marker is None:
        return None
    if output_format.encoding is Encoding.WAV and options.realtime and not options.raw_chunks:
        raise InvalidRequest("encoding wav is for downloads: set realtime to false")
    if output_format.encoding is Encoding.OPUS:
        if options.raw_chunks:
            raise InvalidRequest("encoding opus needs frames: set raw_chunks to false")
        output_format.frame_samples(frame_ms)
        OutputStage(output_format, frame_ms)  # fails now rather than in the first utterance

    def make(params: SynthesisParams) -> OutputStage:
        return OutputStage(
            output_format,
            frame_ms,
            None if gain is None else partial(gain, params.voice),
            None if make_marker is None else make_marker(),
        )

    return make
