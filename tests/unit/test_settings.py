"""Settings from files, the environment and flags; invalid ones are rejected by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tts_worker.errors import ConfigError
from tts_worker.settings import (
    CosyVoiceEngineSettings,
    HibariEngineSettings,
    Settings,
    ToneEngineSettings,
    engines,
    is_loopback,
    keys,
    load_settings,
    sections,
    tree,
)

MOST_SETTINGS = 140
"""May only fall."""

REPOSITORY = Path(__file__).parents[2]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "worker.yaml"
    file.write_text(text, "utf-8")
    return file


def test_precedence_is_flags_environment_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "server: {port: 1, drain_s: 1, send_timeout_s: 1}")
    monkeypatch.setenv("TTS_WORKER_SERVER__PORT", "2")
    monkeypatch.setenv("TTS_WORKER_SERVER__DRAIN_S", "2")
    server = load_settings(file, {"server": {"port": 3}}).server
    assert (server.port, server.drain_s, server.send_timeout_s) == (3, 2.0, 1.0)


def test_default_is_the_cpu_voice_on_loopback() -> None:
    settings = load_settings()
    assert [engine.kind for engine in settings.engines.values()] == ["hibari"]
    assert is_loopback(settings.server.host)


@pytest.mark.parametrize("file", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda file: file.name)
def test_configs_of_the_repository_are_valid(file: Path) -> None:
    assert isinstance(load_settings(file), Settings)


def test_orchestrator_config_ends_a_pause_soon() -> None:
    """The orchestrator that this config serves never resumes, and waits for audio of the pause before it stops."""
    grpc = load_settings(REPOSITORY / "configs" / "orchestrator.yaml").grpc
    assert grpc.pause_timeout_s is not None
    assert grpc.pause_timeout_s <= 0.25


CONFIG = REPOSITORY / "configs" / "worker.yaml"
SECTIONS = [name for name, value in load_settings() if isinstance(value, BaseModel)]


def uncommented() -> dict[str, Any]:
    """configs/worker.yaml including its commented keys."""
    text = re.sub(r"(?m)^( *)# ( *\w+:)", r"\1\2", CONFIG.read_text("utf-8"))
    shown: dict[str, Any] = yaml.safe_load(text)
    return shown


def test_default_config_matches_the_defaults() -> None:
    shown = yaml.safe_load(CONFIG.read_text("utf-8"))
    default = load_settings().model_dump(mode="json")
    for section in SECTIONS:
        for key, value in shown[section].items():
            if (section, key) != ("voices", "directory"):
                assert default[section][key] == value, f"{section}.{key}"
    assert {key: shown[key] for key in ("log_level", "log_format")}.items() <= default.items()


@pytest.mark.parametrize("section", SECTIONS)
def test_default_config_shows_every_setting(section: str) -> None:
    """configs/worker.yaml documents every setting, some in comments."""
    assert set(uncommented()[section]) == set(getattr(load_settings(), section).model_dump())


def test_default_config_shows_every_section() -> None:
    assert set(uncommented()) == set(load_settings().model_dump())


def test_default_config_shows_every_engine_setting() -> None:
    shown = uncommented()["engines"]
    kinds = {
        "hibari": HibariEngineSettings,
        "tone": ToneEngineSettings,
        "cosyvoice": CosyVoiceEngineSettings,
    }
    assert {engine["kind"] for engine in shown.values()} == set(kinds)
    for engine in shown.values():
        required = {"bundle": engine["bundle"]} if "bundle" in engine else {}
        assert engine == kinds[engine["kind"]](**required).model_dump(mode="json")


def test_commented_settings_are_valid(tmp_path: Path) -> None:
    load_settings(written(tmp_path, yaml.safe_dump(uncommented())))


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    file = written(tmp_path, "voices: {directory: ../voicepacks}\ntext: {lexicon: /absolute/lexicon.yaml}")
    settings = load_settings(file)
    assert settings.voices.directory == tmp_path / "../voicepacks"
    assert settings.text.lexicon == Path("/absolute/lexicon.yaml")


SECTION_CLASSES = [
    value
    for module in (sections, engines, tree, keys)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
]


def test_settings_stay_few() -> None:
    """Each class declares what is new in it; sections and key files count as settings, as at the review (186)."""
    declared = [name for section in SECTION_CLASSES for name in section.__annotations__ if name != "model_config"]
    assert len(declared) <= MOST_SETTINGS


def settings_that_are_paths() -> Iterator[tuple[str, str, str]]:
    """Yield section, setting and a value of the section without which it is invalid."""
    needed = {**dict.fromkeys(("tls_key", "tls_client_ca"), ", tls_certificate: x"), "key": ", certificate: x"}
    for section, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            for name, setting in field.annotation.model_fields.items():
                if setting.annotation in (Path, Path | None):
                    yield section, name, needed.get(name, "")


@pytest.mark.parametrize(("section", "name", "needed"), list(settings_that_are_paths()))
def test_every_path_in_a_file_is_relative_to_it(tmp_path: Path, section: str, name: str, needed: str) -> None:
    settings = load_settings(written(tmp_path, f"{section}: {{{name}: near{needed}}}"))
    assert getattr(getattr(settings, section), name) == tmp_path / "near"


def test_replaced_section_of_the_file_is_ignored(tmp_path: Path) -> None:
    file = written(tmp_path, "engines: {a: {kind: tone}}\nserver: {port: 1}")
    tone = {"engines": {"b": {"kind": "tone"}}}
    assert set(load_settings(file, tone).engines) == {"a", "b"}
    assert set(load_settings(file, tone, replaced=["engines"]).engines) == {"b"}


@pytest.mark.parametrize(("written_as", "mode"), [("off", "off"), ("auto", "auto"), ("'off'", "off")])
def test_acceleration_is_switched_by_one_setting(tmp_path: Path, written_as: str, mode: str) -> None:
    engine = f"engines: {{a: {{kind: cosyvoice, bundle: b, acceleration: {written_as}}}}}"
    assert load_settings(written(tmp_path, engine)).engines["a"].acceleration == mode  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {prt: 1}", "server.prt: unknown setting"),
        ("serve: {}", "serve: unknown setting"),
        ("server: {port: many}", "server.port"),
        ("server: {port: 70000}", "server.port"),
        ("server: {host: 0.0.0.0}", "set api_keys"),
        ("server: {host: 0.0.0.0, api_keys: [short]}", "8 characters"),
        ("server: {api_keys: a-long-random-key}", "server.api_keys: must be a list, such as [first, second]"),
        ("server: 5", "server: must be a mapping of names to values"),
        ("session: {lead_ms: -1}", "session.lead_ms"),
        ("text: {lexicon: 5}", "text.lexicon: must be a mapping of words, or the path of a YAML file"),
        ("engines: {}", "engines"),
        ("engines: {a: {kind: magic}}", "engines.a"),
        ("engines: {a: {kind: hibari, threads: 0}}", "threads"),
        ("engines: {a: {kind: cosyvoice, bundle: b, device: autox}}", "engines.a.device"),
        ("engines: {a: {kind: cosyvoice, bundle: b, device: 'cuda:x'}}", "engines.a.device"),
        ("engines: {a: {kind: cosyvoice, bundle: b, memory_gb: .inf}}", "engines.a.memory_gb"),
        ("- a list", "must contain a mapping"),
        ("a: [", "not valid YAML at line"),
        ("server: {port: 1}\nbatch: {}\nserver: {host: localhost}", 'line 3: "server" is given twice, first in line 1'),
        ("server:\n  port: 1\n  port: 2", 'line 3: "port" is given twice, first in line 2'),
        ('server:\n  tls_key: "a\\0b"', r"line 2: a NUL character (\0) is not allowed"),
        ("server: {host: 2024-13-45}", "not valid YAML"),
        ("server: {port: !!int x}", "not valid YAML"),
        ("log_level: !!bool x", "not valid YAML"),
        ("a: " + "[" * 5_000, "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_invalid_file_is_rejected_by_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(written(tmp_path, text))
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TTS_WORKER_SERVER__API_KEYS", "a-long-random-key"),
        ("TTS_WORKER_ENGINES", "hibari"),
        ("TTS_WORKER_SERVER", "0.0.0.0"),
    ],
)
def test_variable_that_is_not_json_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv("TTS_WORKER_SERVER__HOST", "127.0.0.1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as refused:
        load_settings()
    assert f"environment variable {variable}: not valid JSON" in refused.value.message
    assert value not in refused.value.message.replace(variable, ""), "it may be a secret"


def test_one_key_of_the_default_engine_keeps_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = load_settings(flags={"engines": {"hibari": {"max_utterances": 128}}})
    assert (flag.engines["hibari"].kind, flag.engines["hibari"].max_utterances) == ("hibari", 128)
    monkeypatch.setenv("TTS_WORKER_ENGINES__HIBARI__MAX_UTTERANCES", "32")
    assert load_settings().engines["hibari"].max_utterances == 32


def test_one_key_of_a_configured_engine_keeps_its_kind(tmp_path: Path) -> None:
    file = written(tmp_path, "engines: {hibari: {kind: tone}}")
    settings = load_settings(file, {"engines": {"hibari": {"max_utterances": 5}}})
    assert (settings.engines["hibari"].kind, settings.engines["hibari"].max_utterances) == ("tone", 5)


@pytest.mark.parametrize("engine", [{"max_utterances": 128}, {"kind": "kokoro"}])
def test_engine_without_a_known_kind_is_rejected(engine: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"engines\.fast\.kind: must be one of hibari, tone, cosyvoice"):
        load_settings(flags={"engines": {"fast": engine}})


def test_section_of_comments_has_its_defaults(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, "voices:\n  # default: heart\nlog_level: debug")).log_level == "debug"


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        load_settings(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"log_level: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_settings(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TTS_WORKER_SERVR__PORT", "1", "TTS_WORKER_SERVR__PORT: unknown setting"),
        ("TTS_WORKER_SERVER__PORT", "many", "server.port"),
        ("TTS_WORKER_ENGINES", "{not json", "TTS_WORKER_ENGINES: not valid JSON"),
    ],
)
def test_invalid_environment_is_rejected_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        load_settings()
    assert message in refused.value.message


def test_client_variables_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTS_WORKER_URL", "ws://127.0.0.1:8080")
    monkeypatch.setenv("TTS_WORKER_API_KEY", "not-a-setting")
    load_settings()


def test_repr_hides_keys(tmp_path: Path) -> None:
    settings = load_settings(flags={"server": {"api_keys": ["open-sesame"]}})
    assert "open-sesame" not in repr(settings)
    assert settings.server.keys == ("open-sesame",)


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_is_loopback(host: str, expected: Any) -> None:
    assert is_loopback(host) is expected


def test_quotas_may_have_another_redis() -> None:
    url = "redis://:a-password@redis:6379/0"
    grpc = {"enabled": True, "tls_certificate": "grpc.pem"}
    assert url in load_settings(flags={"registry": {"quotas_url": url}, "grpc": grpc}).secrets
    with pytest.raises(ConfigError, match=r"registry\.url: clients of the registry use gRPC without TLS"):
        load_settings(flags={"registry": {"url": url}, "grpc": grpc})


@pytest.mark.parametrize("section", [{"registry": {"url": "{}"}}, {"registry": {"quotas_url": "{}"}}])
@pytest.mark.parametrize("url", ["a-password", "http://:a-password@redis", "redis://", "a-password://redis"])
def test_invalid_redis_url_is_named_without_its_text(section: dict[str, dict[str, str]], url: str) -> None:
    flags = {name: dict.fromkeys(keys, url) for name, keys in section.items()}
    with pytest.raises(ConfigError, match="not a Redis URL") as error:
        load_settings(flags=flags)
    assert "a-password" not in str(error.value)


def test_registry_secret_is_among_the_secrets() -> None:
    settings = load_settings(flags={"registry": {"secret": "a-secret-of-16-chars"}})
    assert "a-secret-of-16-chars" in settings.secrets


@pytest.mark.parametrize(
    ("sections", "shares"),
    [
        ({"engines": {"a": {}}}, [1.0]),
        ({"engines": {"a": {}, "b": {"device": "cuda"}}}, [0.5, 0.5]),
        ({"engines": {"a": {}, "b": {}}, "engine": {"memory_share": 0.5}}, [0.25, 0.25]),
        ({"engines": {"a": {}, "b": {"device": "cuda:1"}, "c": {"device": "cuda:0"}}}, [0.5, 1.0, 0.5]),
        ({"engines": {"a": {}, "b": {"device": "cpu"}, "voice": {"kind": "hibari"}}}, [1.0, 1.0, 1.0]),
        ({"engines": {"a": {}, "b": {}, "c": {}}, "models": {"preload": ["a"], "resident_cap": 2}}, [0.5] * 3),
        ({"engines": {"a": {}, "b": {}}, "models": {"preload": ["a"], "resident_cap": None}}, [0.5, 0.5]),
    ],
)
def test_engines_on_one_gpu_divide_its_memory(sections: dict[str, Any], shares: list[float]) -> None:
    engines = {name: {"kind": "cosyvoice", "bundle": "b", **engine} for name, engine in sections["engines"].items()}
    for engine in engines.values():
        if engine["kind"] != "cosyvoice":
            del engine["bundle"]
    settings = load_settings(flags={**sections, "engines": engines})
    assert [settings.memory_share(name) for name in engines] == shares


_DOCUMENTED = re.compile(r"\bTTS_WORKER(?:_[A-Z]+)+(?:__[A-Z_]+)*\b")
_MAX_BYTES = 200_000
_PLACEHOLDERS = {"TTS_WORKER_SECTION__KEY"}
_VALUES = (
    "true",
    "8080",
    "127.0.0.1",
    "worker.example:7002",
    "json",
    "process",
    "redis://127.0.0.1:6379/0",
    '["a-key-of-an-application"]',
    '["https://app.example.com"]',
    "a-secret-of-24-characters",
)
"""Values of which one suits each variable."""


def documented_variables() -> set[str]:
    """The environment variables that documentation, help, examples and deployments name."""
    folders = ("docs", "examples", "docker", "deploy", "configs", "src", "packages", "scripts")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix != ".pyc"]
    files += [path for path in REPOSITORY.iterdir() if path.suffix in (".md", ".yml")]
    texts = [
        path.read_text("utf-8", "replace") for path in files if path.is_file() and path.stat().st_size < _MAX_BYTES
    ]
    return {name for text in texts for name in _DOCUMENTED.findall(text)} - _PLACEHOLDERS


@pytest.mark.parametrize("variable", sorted(documented_variables()))
def test_documented_variable_can_be_set(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []
    for value in _VALUES:
        monkeypatch.setenv(variable, value)
        try:
            load_settings(flags={"grpc": {"enabled": True}})
            return
        except ConfigError as error:
            refused.append(error.message)
    pytest.fail(f"every value of {variable} is refused: {refused}")
