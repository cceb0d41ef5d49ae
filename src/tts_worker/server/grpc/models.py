"""What a worker says of itself to orchestrators: its model ids with their engines and voices, and its load.

A model id is the name of an engine, an alias from ``grpc.models`` in the settings (for clients with fixed ids), or the
name of a voice. An unknown id is an error; there is no fallback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tts_worker.errors import IllegalCommand, UnknownModel, UnknownVoice
from tts_worker.session.host import WorkerHost
from tts_worker.session.hub import SessionHub
from tts_worker.types import SAMPLE_RATE_HZ
from tts_worker.voices.description import VoiceDescription

OFFERED_RATES_HZ = (8_000, 16_000, 22_050, SAMPLE_RATE_HZ, 32_000, 44_100, 48_000)
"""Sample rates that the worker tells; multiples of 25 Hz in between work too."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as clients see it.

    Attributes:
        engine: Name of the engine.
        family: Family reported to clients.
        voice: Voice of the model, None for the engine's first voice.
        listed_languages: Languages reported to clients; empty for those of its voices.
    """

    engine: str
    family: str
    voice: str | None = None
    listed_languages: tuple[str, ...] = ()


class ModelCatalog:
    """The models that clients can name.

    Args:
        host: Loads and unloads engines.
        engines: Family of each engine, by name.
        aliases: Further ids from the settings.
    """

    def __init__(self, host: WorkerHost, engines: Mapping[str, str], aliases: Mapping[str, ServedModel]) -> None:
        self._host = host
        self._models = {name: ServedModel(name, family) for name, family in engines.items()} | dict(aliases)

    def __iter__(self) -> Iterator[tuple[str, ServedModel]]:
        return iter(self._models.items())

    def get(self, model_id: str) -> ServedModel:
        """Return the model of an id. Raises UnknownModel."""
        if model_id in self._models:
            return self._models[model_id]
        try:
            voice = self._host.hub.voices.get(model_id)
        except UnknownVoice:
            known = ", ".join(self._models)
            raise UnknownModel(f'unknown model "{model_id[:64]}"; available: {known}') from None
        return ServedModel(voice.engine, voice.engine, voice.name)

    def is_loaded(self, model: ServedModel) -> bool:
        return self._host.is_loaded(model.engine)

    def voices(self, model: ServedModel) -> list[VoiceDescription]:
        """Return the voices of a model; empty while it is not loaded."""
        voices = [voice for voice in self._host.hub.voices if voice.engine == model.engine]
        return [voice for voice in voices if model.voice in (None, voice.name)] or voices

    def languages(self, model: ServedModel) -> list[str]:
        return sorted(model.listed_languages or {tag for voice in self.voices(model) for tag in voice.languages})

    async def load(self, model_id: str) -> ServedModel:
        """Load a model unless it is loaded.

        Raises:
            UnknownModel: The id is unknown.
            TTSWorkerError: The engine failed to start.
        """
        model = self.get(model_id)
        await self._host.load(model.engine)
        return model

    async def unload(self, model_id: str) -> bool:
        """Unload the engine of a model. Returns False if it stays, because it is the worker's default.

        Raises:
            UnknownModel: The id is unknown.
            IllegalCommand: Sessions use the engine.
        """
        model = self.get(model_id)
        voices = self._host.hub.voices
        if self.is_loaded(model) and len(voices) and voices.get(None).engine == model.engine:
            return False
        try:
            await self._host.unload(model.engine)
        except IllegalCommand as error:
            raise IllegalCommand(f"the model stays: {error.message}") from None
        return True

    async def reload(self, engine: str) -> None:
        """Replace an engine by one that is built anew; sessions in progress keep the old one. Raises its error."""
        await self._host.reload(engine)

    @property
    def resident(self) -> list[str]:
        """Ids of the loaded models."""
        return [name for name, model in self._models.items() if self.is_loaded(model)]


def load_metrics(hub: SessionHub) -> dict[str, float]:
    """Load metrics for orchestrators.

    ``queue_depth`` is the number of slots in use, because sessions never queue. ``rtf`` is always present, because
    orchestrators that sort by it rank a worker without it last.
    """
    slots = hub.max_sessions
    free = hub.free_slots
    return {
        "queue_depth": float(slots - free),
        "live_sessions": float(hub.live_sessions),
        "free_slots": float(free),
        "load": (slots - free) / slots,
        "rtf": hub.rtf,
        "buffered_s": hub.buffered_s,
        "ready": float(hub.ready),
    }
