"""The settings, as one tree: YAML file < environment < command-line flags.

They are read once, by ``app`` or ``cli``. An invalid value is a ConfigError that names the key. Environment:
``TTS_WORKER_SERVER__PORT=9000`` sets ``server.port``.
"""

from tts_worker.settings.engines import (
    CosyVoiceEngineSettings,
    EngineSettings,
    HibariEngineSettings,
    ToneEngineSettings,
)
from tts_worker.settings.load import check_directory, load_settings, read_lexicon, read_yaml
from tts_worker.settings.packaged import find_config, packaged
from tts_worker.settings.sections import GrpcSettings, ServerSettings, TextSettings, is_loopback
from tts_worker.settings.tree import Settings

__all__ = [
    "CosyVoiceEngineSettings",
    "EngineSettings",
    "GrpcSettings",
    "HibariEngineSettings",
    "ServerSettings",
    "Settings",
    "TextSettings",
    "ToneEngineSettings",
    "check_directory",
    "find_config",
    "is_loopback",
    "load_settings",
    "packaged",
    "read_lexicon",
    "read_yaml",
]
