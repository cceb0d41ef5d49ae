from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControlCommand(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAUSE: _ClassVar[ControlCommand]
    RESUME: _ClassVar[ControlCommand]
    STOP: _ClassVar[ControlCommand]
    RELOAD: _ClassVar[ControlCommand]
PAUSE: ControlCommand
RESUME: ControlCommand
STOP: ControlCommand
RELOAD: ControlCommand

class StartSessionRequest(_message.Message):
    __slots__ = ("session_id", "model_id", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    model_id: str
    options: _containers.ScalarMap[str, str]
    def __init__(self, session_id: _Optional[str] = ..., model_id: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StartSessionResponse(_message.Message):
    __slots__ = ("success", "message", "error", "sample_rate", "voice")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    error: Error
    sample_rate: int
    voice: str
    def __init__(self, success: bool = ..., message: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., sample_rate: _Optional[int] = ..., voice: _Optional[str] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: bool = ...) -> None: ...

class TextChunk(_message.Message):
    __slots__ = ("session_id", "text", "is_final", "sequence_number", "flush")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    text: str
    is_final: bool
    sequence_number: int
    flush: bool
    def __init__(self, session_id: _Optional[str] = ..., text: _Optional[str] = ..., is_final: bool = ..., sequence_number: _Optional[int] = ..., flush: bool = ...) -> None: ...

class AudioFrame(_message.Message):
    __slots__ = ("session_id", "audio_data", "sample_rate", "frame_duration_ms", "sequence_number", "is_final", "generation", "pts_samples", "words", "speech_samples", "receipt", "sha256")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AUDIO_DATA_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    FRAME_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PTS_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    SPEECH_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    audio_data: bytes
    sample_rate: int
    frame_duration_ms: int
    sequence_number: int
    is_final: bool
    generation: int
    pts_samples: int
    words: _containers.RepeatedCompositeFieldContainer[Word]
    speech_samples: int
    receipt: Receipt
    sha256: str
    def __init__(self, session_id: _Optional[str] = ..., audio_data: _Optional[bytes] = ..., sample_rate: _Optional[int] = ..., frame_duration_ms: _Optional[int] = ..., sequence_number: _Optional[int] = ..., is_final: bool = ..., generation: _Optional[int] = ..., pts_samples: _Optional[int] = ..., words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., speech_samples: _Optional[int] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., sha256: _Optional[str] = ...) -> None: ...

class Word(_message.Message):
    __slots__ = ("text", "start_ms", "end_ms", "char_start", "char_end", "start_sample", "end_sample")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    CHAR_START_FIELD_NUMBER: _ClassVar[int]
    CHAR_END_FIELD_NUMBER: _ClassVar[int]
    START_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    END_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    text: str
    start_ms: int
    end_ms: int
    char_start: int
    char_end: int
    start_sample: int
    end_sample: int
    def __init__(self, text: _Optional[str] = ..., start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., char_start: _Optional[int] = ..., char_end: _Optional[int] = ..., start_sample: _Optional[int] = ..., end_sample: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("outcome", "reason", "samples_generated", "samples_sent", "samples_played", "text_spoken", "text_remaining", "words", "alignment", "skipped")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_GENERATED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_SENT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PLAYED_FIELD_NUMBER: _ClassVar[int]
    TEXT_SPOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_REMAINING_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    reason: str
    samples_generated: int
    samples_sent: int
    samples_played: int
    text_spoken: str
    text_remaining: str
    words: _containers.RepeatedCompositeFieldContainer[Word]
    alignment: str
    skipped: _containers.RepeatedCompositeFieldContainer[Skipped]
    def __init__(self, outcome: _Optional[str] = ..., reason: _Optional[str] = ..., samples_generated: _Optional[int] = ..., samples_sent: _Optional[int] = ..., samples_played: _Optional[int] = ..., text_spoken: _Optional[str] = ..., text_remaining: _Optional[str] = ..., words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., alignment: _Optional[str] = ..., skipped: _Optional[_Iterable[_Union[Skipped, _Mapping]]] = ...) -> None: ...

class Skipped(_message.Message):
    __slots__ = ("start", "end", "reason")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    reason: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "retryable", "retry_after_s")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retryable: bool
    retry_after_s: float
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: bool = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class ControlRequest(_message.Message):
    __slots__ = ("session_id", "command", "generation", "played_ms", "reason")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PLAYED_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    command: ControlCommand
    generation: int
    played_ms: int
    reason: str
    def __init__(self, session_id: _Optional[str] = ..., command: _Optional[_Union[ControlCommand, str]] = ..., generation: _Optional[int] = ..., played_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ControlResponse(_message.Message):
    __slots__ = ("success", "message", "timestamp_ms", "applied", "state", "generation", "emitted_samples", "played_samples", "spoken_text", "remaining_text", "words", "effect_us", "pause_timeout_ms", "error", "skipped")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EMITTED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PLAYED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SPOKEN_TEXT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_TEXT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    EFFECT_US_FIELD_NUMBER: _ClassVar[int]
    PAUSE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    timestamp_ms: int
    applied: bool
    state: str
    generation: int
    emitted_samples: int
    played_samples: int
    spoken_text: str
    remaining_text: str
    words: _containers.RepeatedCompositeFieldContainer[Word]
    effect_us: int
    pause_timeout_ms: int
    error: Error
    skipped: _containers.RepeatedCompositeFieldContainer[Skipped]
    def __init__(self, success: bool = ..., message: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., applied: bool = ..., state: _Optional[str] = ..., generation: _Optional[int] = ..., emitted_samples: _Optional[int] = ..., played_samples: _Optional[int] = ..., spoken_text: _Optional[str] = ..., remaining_text: _Optional[str] = ..., words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., effect_us: _Optional[int] = ..., pause_timeout_ms: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., skipped: _Optional[_Iterable[_Union[Skipped, _Mapping]]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model_id", "family", "is_loaded", "languages", "metadata", "voices")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    IS_LOADED_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    VOICES_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    family: str
    is_loaded: bool
    languages: _containers.RepeatedScalarFieldContainer[str]
    metadata: _containers.ScalarMap[str, str]
    voices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model_id: _Optional[str] = ..., family: _Optional[str] = ..., is_loaded: bool = ..., languages: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., voices: _Optional[_Iterable[str]] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model_id", "preload_only")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_ONLY_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    preload_only: bool
    def __init__(self, model_id: _Optional[str] = ..., preload_only: bool = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("success", "message", "load_duration_ms", "error")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOAD_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    load_duration_ms: int
    error: Error
    def __init__(self, success: bool = ..., message: _Optional[str] = ..., load_duration_ms: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ("success", "message", "error", "unloaded")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    UNLOADED_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    error: Error
    unloaded: bool
    def __init__(self, success: bool = ..., message: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., unloaded: bool = ...) -> None: ...

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("streaming", "zero_shot", "lora", "cpu_ok", "languages", "emotive_zero_prompt", "max_concurrent_sessions", "sample_rates", "native_sample_rate", "word_timestamps", "pause_resume", "max_lookahead_ms", "protocol_version", "voices", "pause_timeout_ms")
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    ZERO_SHOT_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    CPU_OK_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    EMOTIVE_ZERO_PROMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATES_FIELD_NUMBER: _ClassVar[int]
    NATIVE_SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    WORD_TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_RESUME_FIELD_NUMBER: _ClassVar[int]
    MAX_LOOKAHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    VOICES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    streaming: bool
    zero_shot: bool
    lora: bool
    cpu_ok: bool
    languages: _containers.RepeatedScalarFieldContainer[str]
    emotive_zero_prompt: bool
    max_concurrent_sessions: int
    sample_rates: _containers.RepeatedScalarFieldContainer[int]
    native_sample_rate: int
    word_timestamps: bool
    pause_resume: bool
    max_lookahead_ms: int
    protocol_version: int
    voices: _containers.RepeatedScalarFieldContainer[str]
    pause_timeout_ms: int
    def __init__(self, streaming: bool = ..., zero_shot: bool = ..., lora: bool = ..., cpu_ok: bool = ..., languages: _Optional[_Iterable[str]] = ..., emotive_zero_prompt: bool = ..., max_concurrent_sessions: _Optional[int] = ..., sample_rates: _Optional[_Iterable[int]] = ..., native_sample_rate: _Optional[int] = ..., word_timestamps: bool = ..., pause_resume: bool = ..., max_lookahead_ms: _Optional[int] = ..., protocol_version: _Optional[int] = ..., voices: _Optional[_Iterable[str]] = ..., pause_timeout_ms: _Optional[int] = ...) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("capabilities", "resident_models", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_MODELS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    capabilities: Capabilities
    resident_models: _containers.RepeatedScalarFieldContainer[str]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., resident_models: _Optional[_Iterable[str]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ConverseRequest(_message.Message):
    __slots__ = ("start", "say", "end", "flush", "pause", "resume", "stop", "played", "configure", "express")
    class Start(_message.Message):
        __slots__ = ("protocol_version", "voicing", "realtime", "lead_ms", "frame_ms", "raw_chunks", "lexicon_json", "markdown", "urls", "normalize", "pause_timeout_s", "text_idle_timeout_s", "model", "needs", "flush_after_ms", "sample_rate", "encoding", "checksums")
        PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
        VOICING_FIELD_NUMBER: _ClassVar[int]
        REALTIME_FIELD_NUMBER: _ClassVar[int]
        LEAD_MS_FIELD_NUMBER: _ClassVar[int]
        FRAME_MS_FIELD_NUMBER: _ClassVar[int]
        RAW_CHUNKS_FIELD_NUMBER: _ClassVar[int]
        LEXICON_JSON_FIELD_NUMBER: _ClassVar[int]
        MARKDOWN_FIELD_NUMBER: _ClassVar[int]
        URLS_FIELD_NUMBER: _ClassVar[int]
        NORMALIZE_FIELD_NUMBER: _ClassVar[int]
        PAUSE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
        TEXT_IDLE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
        MODEL_FIELD_NUMBER: _ClassVar[int]
        NEEDS_FIELD_NUMBER: _ClassVar[int]
        FLUSH_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
        SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
        ENCODING_FIELD_NUMBER: _ClassVar[int]
        CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
        protocol_version: int
        voicing: ConverseRequest.Voicing
        realtime: bool
        lead_ms: float
        frame_ms: int
        raw_chunks: bool
        lexicon_json: str
        markdown: bool
        urls: str
        normalize: bool
        pause_timeout_s: float
        text_idle_timeout_s: float
        model: str
        needs: _containers.RepeatedScalarFieldContainer[str]
        flush_after_ms: float
        sample_rate: int
        encoding: str
        checksums: bool
        def __init__(self, protocol_version: _Optional[int] = ..., voicing: _Optional[_Union[ConverseRequest.Voicing, _Mapping]] = ..., realtime: bool = ..., lead_ms: _Optional[float] = ..., frame_ms: _Optional[int] = ..., raw_chunks: bool = ..., lexicon_json: _Optional[str] = ..., markdown: bool = ..., urls: _Optional[str] = ..., normalize: bool = ..., pause_timeout_s: _Optional[float] = ..., text_idle_timeout_s: _Optional[float] = ..., model: _Optional[str] = ..., needs: _Optional[_Iterable[str]] = ..., flush_after_ms: _Optional[float] = ..., sample_rate: _Optional[int] = ..., encoding: _Optional[str] = ..., checksums: bool = ...) -> None: ...
    class Voicing(_message.Message):
        __slots__ = ("voice", "speed", "seed", "language", "instruct")
        VOICE_FIELD_NUMBER: _ClassVar[int]
        SPEED_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        LANGUAGE_FIELD_NUMBER: _ClassVar[int]
        INSTRUCT_FIELD_NUMBER: _ClassVar[int]
        voice: str
        speed: float
        seed: int
        language: str
        instruct: str
        def __init__(self, voice: _Optional[str] = ..., speed: _Optional[float] = ..., seed: _Optional[int] = ..., language: _Optional[str] = ..., instruct: _Optional[str] = ...) -> None: ...
    class Express(_message.Message):
        __slots__ = ("rate", "volume_db", "pitch_semitones", "style")
        RATE_FIELD_NUMBER: _ClassVar[int]
        VOLUME_DB_FIELD_NUMBER: _ClassVar[int]
        PITCH_SEMITONES_FIELD_NUMBER: _ClassVar[int]
        STYLE_FIELD_NUMBER: _ClassVar[int]
        rate: float
        volume_db: float
        pitch_semitones: float
        style: str
        def __init__(self, rate: _Optional[float] = ..., volume_db: _Optional[float] = ..., pitch_semitones: _Optional[float] = ..., style: _Optional[str] = ...) -> None: ...
    class Say(_message.Message):
        __slots__ = ("context", "text")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        context: str
        text: str
        def __init__(self, context: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
    class EndText(_message.Message):
        __slots__ = ("context",)
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        context: str
        def __init__(self, context: _Optional[str] = ...) -> None: ...
    class Flush(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Pause(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Resume(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Stop(_message.Message):
        __slots__ = ("reason", "played_samples", "utterance", "context")
        REASON_FIELD_NUMBER: _ClassVar[int]
        PLAYED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
        UTTERANCE_FIELD_NUMBER: _ClassVar[int]
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        reason: str
        played_samples: int
        utterance: int
        context: str
        def __init__(self, reason: _Optional[str] = ..., played_samples: _Optional[int] = ..., utterance: _Optional[int] = ..., context: _Optional[str] = ...) -> None: ...
    class Played(_message.Message):
        __slots__ = ("samples", "utterance")
        SAMPLES_FIELD_NUMBER: _ClassVar[int]
        UTTERANCE_FIELD_NUMBER: _ClassVar[int]
        samples: int
        utterance: int
        def __init__(self, samples: _Optional[int] = ..., utterance: _Optional[int] = ...) -> None: ...
    START_FIELD_NUMBER: _ClassVar[int]
    SAY_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    PLAYED_FIELD_NUMBER: _ClassVar[int]
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    EXPRESS_FIELD_NUMBER: _ClassVar[int]
    start: ConverseRequest.Start
    say: ConverseRequest.Say
    end: ConverseRequest.EndText
    flush: ConverseRequest.Flush
    pause: ConverseRequest.Pause
    resume: ConverseRequest.Resume
    stop: ConverseRequest.Stop
    played: ConverseRequest.Played
    configure: ConverseRequest.Voicing
    express: ConverseRequest.Express
    def __init__(self, start: _Optional[_Union[ConverseRequest.Start, _Mapping]] = ..., say: _Optional[_Union[ConverseRequest.Say, _Mapping]] = ..., end: _Optional[_Union[ConverseRequest.EndText, _Mapping]] = ..., flush: _Optional[_Union[ConverseRequest.Flush, _Mapping]] = ..., pause: _Optional[_Union[ConverseRequest.Pause, _Mapping]] = ..., resume: _Optional[_Union[ConverseRequest.Resume, _Mapping]] = ..., stop: _Optional[_Union[ConverseRequest.Stop, _Mapping]] = ..., played: _Optional[_Union[ConverseRequest.Played, _Mapping]] = ..., configure: _Optional[_Union[ConverseRequest.Voicing, _Mapping]] = ..., express: _Optional[_Union[ConverseRequest.Express, _Mapping]] = ...) -> None: ...

class ConverseResponse(_message.Message):
    __slots__ = ("ready", "pcm", "started", "words", "acknowledged", "ended", "rejected", "chunk")
    class Ready(_message.Message):
        __slots__ = ("protocol_version", "session", "sample_rate", "voice", "alignment", "format", "model", "unsupported_expressions")
        PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
        SESSION_FIELD_NUMBER: _ClassVar[int]
        SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
        VOICE_FIELD_NUMBER: _ClassVar[int]
        ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
        FORMAT_FIELD_NUMBER: _ClassVar[int]
        MODEL_FIELD_NUMBER: _ClassVar[int]
        UNSUPPORTED_EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
        protocol_version: int
        session: str
        sample_rate: int
        voice: str
        alignment: str
        format: str
        model: str
        unsupported_expressions: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, protocol_version: _Optional[int] = ..., session: _Optional[str] = ..., sample_rate: _Optional[int] = ..., voice: _Optional[str] = ..., alignment: _Optional[str] = ..., format: _Optional[str] = ..., model: _Optional[str] = ..., unsupported_expressions: _Optional[_Iterable[str]] = ...) -> None: ...
    class Started(_message.Message):
        __slots__ = ("context", "voice", "speed", "seed", "language", "instruct", "utterance")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        VOICE_FIELD_NUMBER: _ClassVar[int]
        SPEED_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        LANGUAGE_FIELD_NUMBER: _ClassVar[int]
        INSTRUCT_FIELD_NUMBER: _ClassVar[int]
        UTTERANCE_FIELD_NUMBER: _ClassVar[int]
        context: str
        voice: str
        speed: float
        seed: int
        language: str
        instruct: str
        utterance: int
        def __init__(self, context: _Optional[str] = ..., voice: _Optional[str] = ..., speed: _Optional[float] = ..., seed: _Optional[int] = ..., language: _Optional[str] = ..., instruct: _Optional[str] = ..., utterance: _Optional[int] = ...) -> None: ...
    class Words(_message.Message):
        __slots__ = ("words", "skipped")
        WORDS_FIELD_NUMBER: _ClassVar[int]
        SKIPPED_FIELD_NUMBER: _ClassVar[int]
        words: _containers.RepeatedCompositeFieldContainer[Word]
        skipped: _containers.RepeatedCompositeFieldContainer[Skipped]
        def __init__(self, words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., skipped: _Optional[_Iterable[_Union[Skipped, _Mapping]]] = ...) -> None: ...
    class Chunk(_message.Message):
        __slots__ = ("utterance", "index", "start_sample", "samples", "sha256")
        UTTERANCE_FIELD_NUMBER: _ClassVar[int]
        INDEX_FIELD_NUMBER: _ClassVar[int]
        START_SAMPLE_FIELD_NUMBER: _ClassVar[int]
        SAMPLES_FIELD_NUMBER: _ClassVar[int]
        SHA256_FIELD_NUMBER: _ClassVar[int]
        utterance: int
        index: int
        start_sample: int
        samples: int
        sha256: str
        def __init__(self, utterance: _Optional[int] = ..., index: _Optional[int] = ..., start_sample: _Optional[int] = ..., samples: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...
    class Acknowledged(_message.Message):
        __slots__ = ("command", "applied", "position_samples")
        COMMAND_FIELD_NUMBER: _ClassVar[int]
        APPLIED_FIELD_NUMBER: _ClassVar[int]
        POSITION_SAMPLES_FIELD_NUMBER: _ClassVar[int]
        command: ControlCommand
        applied: bool
        position_samples: int
        def __init__(self, command: _Optional[_Union[ControlCommand, str]] = ..., applied: bool = ..., position_samples: _Optional[int] = ...) -> None: ...
    class Ended(_message.Message):
        __slots__ = ("context", "receipt", "error")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        RECEIPT_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        context: str
        receipt: Receipt
        error: Error
        def __init__(self, context: _Optional[str] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...
    class Rejected(_message.Message):
        __slots__ = ("context", "error", "command")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        COMMAND_FIELD_NUMBER: _ClassVar[int]
        context: str
        error: Error
        command: str
        def __init__(self, context: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., command: _Optional[str] = ...) -> None: ...
    READY_FIELD_NUMBER: _ClassVar[int]
    PCM_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ready: ConverseResponse.Ready
    pcm: bytes
    started: ConverseResponse.Started
    words: ConverseResponse.Words
    acknowledged: ConverseResponse.Acknowledged
    ended: ConverseResponse.Ended
    rejected: ConverseResponse.Rejected
    chunk: ConverseResponse.Chunk
    def __init__(self, ready: _Optional[_Union[ConverseResponse.Ready, _Mapping]] = ..., pcm: _Optional[bytes] = ..., started: _Optional[_Union[ConverseResponse.Started, _Mapping]] = ..., words: _Optional[_Union[ConverseResponse.Words, _Mapping]] = ..., acknowledged: _Optional[_Union[ConverseResponse.Acknowledged, _Mapping]] = ..., ended: _Optional[_Union[ConverseResponse.Ended, _Mapping]] = ..., rejected: _Optional[_Union[ConverseResponse.Rejected, _Mapping]] = ..., chunk: _Optional[_Union[ConverseResponse.Chunk, _Mapping]] = ...) -> None: ...

class VoiceInfo(_message.Message):
    __slots__ = ("id", "name", "engine", "languages", "description", "tags", "styles", "capabilities", "license", "sample_rate", "is_default", "stored", "gender", "aliases")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    STYLES_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    LICENSE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    GENDER_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    engine: str
    languages: _containers.RepeatedScalarFieldContainer[str]
    description: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    styles: _containers.RepeatedScalarFieldContainer[str]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    license: str
    sample_rate: int
    is_default: bool
    stored: StoredVoice
    gender: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., engine: _Optional[str] = ..., languages: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., styles: _Optional[_Iterable[str]] = ..., capabilities: _Optional[_Iterable[str]] = ..., license: _Optional[str] = ..., sample_rate: _Optional[int] = ..., is_default: bool = ..., stored: _Optional[_Union[StoredVoice, _Mapping]] = ..., gender: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...

class StoredVoice(_message.Message):
    __slots__ = ("source", "created_at", "owner", "consent", "figures", "notes", "not_checked")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CONSENT_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    NOT_CHECKED_FIELD_NUMBER: _ClassVar[int]
    source: str
    created_at: str
    owner: str
    consent: bool
    figures: _containers.ScalarMap[str, float]
    notes: _containers.RepeatedScalarFieldContainer[str]
    not_checked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source: _Optional[str] = ..., created_at: _Optional[str] = ..., owner: _Optional[str] = ..., consent: bool = ..., figures: _Optional[_Mapping[str, float]] = ..., notes: _Optional[_Iterable[str]] = ..., not_checked: _Optional[_Iterable[str]] = ...) -> None: ...

class ListVoicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVoicesResponse(_message.Message):
    __slots__ = ("voices",)
    VOICES_FIELD_NUMBER: _ClassVar[int]
    voices: _containers.RepeatedCompositeFieldContainer[VoiceInfo]
    def __init__(self, voices: _Optional[_Iterable[_Union[VoiceInfo, _Mapping]]] = ...) -> None: ...

class GetVoiceRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class AddVoiceRequest(_message.Message):
    __slots__ = ("voice", "audio")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    voice: NewVoice
    audio: bytes
    def __init__(self, voice: _Optional[_Union[NewVoice, _Mapping]] = ..., audio: _Optional[bytes] = ...) -> None: ...

class NewVoice(_message.Message):
    __slots__ = ("name", "transcript", "consent", "style", "languages", "tags", "description", "gender", "license", "title", "engine", "mix", "prompt")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    CONSENT_FIELD_NUMBER: _ClassVar[int]
    STYLE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GENDER_FIELD_NUMBER: _ClassVar[int]
    LICENSE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MIX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    transcript: str
    consent: bool
    style: str
    languages: _containers.RepeatedScalarFieldContainer[str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    description: str
    gender: str
    license: str
    title: str
    engine: str
    mix: _containers.RepeatedCompositeFieldContainer[MixPart]
    prompt: str
    def __init__(self, name: _Optional[str] = ..., transcript: _Optional[str] = ..., consent: bool = ..., style: _Optional[str] = ..., languages: _Optional[_Iterable[str]] = ..., tags: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., gender: _Optional[str] = ..., license: _Optional[str] = ..., title: _Optional[str] = ..., engine: _Optional[str] = ..., mix: _Optional[_Iterable[_Union[MixPart, _Mapping]]] = ..., prompt: _Optional[str] = ...) -> None: ...

class MixPart(_message.Message):
    __slots__ = ("voice", "weight")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    voice: str
    weight: float
    def __init__(self, voice: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class DeleteVoiceRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class DeleteVoiceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConvertRequest(_message.Message):
    __slots__ = ("start", "audio")
    START_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    start: ConversionStart
    audio: bytes
    def __init__(self, start: _Optional[_Union[ConversionStart, _Mapping]] = ..., audio: _Optional[bytes] = ...) -> None: ...

class ConversionStart(_message.Message):
    __slots__ = ("voice", "model", "speed", "seed", "sample_rate", "encoding", "realtime", "live_sample_rate", "checksums")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    REALTIME_FIELD_NUMBER: _ClassVar[int]
    LIVE_SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    voice: str
    model: str
    speed: float
    seed: int
    sample_rate: int
    encoding: str
    realtime: bool
    live_sample_rate: int
    checksums: bool
    def __init__(self, voice: _Optional[str] = ..., model: _Optional[str] = ..., speed: _Optional[float] = ..., seed: _Optional[int] = ..., sample_rate: _Optional[int] = ..., encoding: _Optional[str] = ..., realtime: bool = ..., live_sample_rate: _Optional[int] = ..., checksums: bool = ...) -> None: ...

class ConvertResponse(_message.Message):
    __slots__ = ("ready", "audio", "receipt", "chunk")
    READY_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ready: ConversionReady
    audio: bytes
    receipt: Receipt
    chunk: ConverseResponse.Chunk
    def __init__(self, ready: _Optional[_Union[ConversionReady, _Mapping]] = ..., audio: _Optional[bytes] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., chunk: _Optional[_Union[ConverseResponse.Chunk, _Mapping]] = ...) -> None: ...

class ConversionReady(_message.Message):
    __slots__ = ("sample_rate", "format", "voice", "model")
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    sample_rate: int
    format: str
    voice: str
    model: str
    def __init__(self, sample_rate: _Optional[int] = ..., format: _Optional[str] = ..., voice: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...
