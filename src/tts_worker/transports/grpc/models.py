"""ServedModel ids of the worker protocol, and the engines and voices behind them.

A model id is the name of an engine of the settings, a name that the settings give to an engine (so that a client with
fixed ids can be served on purpose), or the name of a voice. There is no fallback: an id that is not known is an error.
Loading is the ``ModelHost``'s work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tts_worker.errors import IllegalCommand, UnknownModel, UnknownVoice
from tts_worker.session.hub import SessionHub
from tts_worker.voices import Voice


class ModelHost(Protocol):
    """Who loads engines (``app.Worker``)."""

    @property
    def hub(self) -> SessionHub: ...
    def loaded(self, name: str) -> bool: ...
    async def load(self, name: str) -> None: ...
    async def unload(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """``voice``: what it speaks with, None for the engine's first voice. ``family, listed_languages``: what clients
    know it as; no languages means those of its voices."""

    engine: str
    family: str
    voice: str | None = None
    listed_languages: tuple[str, ...] = ()


class ModelCatalog:
    """``engines``: engine name -> family. ``named``: further ids."""

    def __init__(self, host: ModelHost, engines: Mapping[str, str], named: Mapping[str, ServedModel]) -> None:
        self._host = host
        self._models = {name: ServedModel(name, family) for name, family in engines.items()} | dict(named)

    def __iter__(self) -> Iterator[tuple[str, ServedModel]]:
        return iter(self._models.items())

    def get(self, model_id: str) -> ServedModel:
        """Raises UnknownModel."""
        if model_id in self._models:
            return self._models[model_id]
        try:
            voice = self._host.hub.voices.get(model_id)
        except UnknownVoice:
            known = ", ".join(self._models)
            raise UnknownModel(f'there is no model "{model_id[:64]}"; there are: {known}') from None
        return ServedModel(voice.engine, voice.engine, voice.name)

    def loaded(self, model: ServedModel) -> bool:
        return self._host.loaded(model.engine)

    def voices(self, model: ServedModel) -> list[Voice]:
        """What it speaks with now; empty while it is not loaded."""
        voices = [voice for voice in self._host.hub.voices if voice.engine == model.engine]
        return [voice for voice in voices if model.voice in (None, voice.name)] or voices

    def languages(self, model: ServedModel) -> list[str]:
        return sorted(model.listed_languages or {tag for voice in self.voices(model) for tag in voice.languages})

    async def load(self, model_id: str) -> ServedModel:
        """Load it unless it is loaded. Raises UnknownModel, and what the engine's start raises."""
        model = self.get(model_id)
        await self._host.load(model.engine)
        return model

    async def unload(self, model_id: str) -> bool:
        """Free its engine; returns False where it stays because it is the worker's default.

        Raises UnknownModel, and IllegalCommand while sessions of anybody use it.
        """
        model = self.get(model_id)
        voices = self._host.hub.voices
        if self.loaded(model) and len(voices) and voices.get(None).engine == model.engine:
            return False
        try:
            await self._host.unload(model.engine)
        except IllegalCommand as error:
            raise IllegalCommand(f"the model stays: {error.message}") from None
        return True

    @property
    def resident(self) -> list[str]:
        """Ids of the models that are loaded."""
        return [name for name, model in self._models.items() if self.loaded(model)]
