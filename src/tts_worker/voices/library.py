"""Voices as resources of a worker: adding, mixing and deleting stored voices while it runs.

A voice is computed on the enrolment thread of its engine and stored in the engine's directory. Every process with the
same directory lists it within a second, and knows it as soon as a request names it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tts_worker.audio.prompt import PromptFigures
from tts_worker.callers import ApiScope, Caller, current_caller
from tts_worker.errors import (
    BundleError,
    Forbidden,
    IllegalCommand,
    InvalidRequest,
    OverCapacity,
    TextTooLong,
    TTSWorkerError,
    UnknownVoice,
    VoiceQuotaExceeded,
)
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.details import NEUTRAL, VoiceDetails, VoiceMetadata, split_style
from tts_worker.voices.enrolment import MAX_PROMPT_CHARS, Enrolment, check_size
from tts_worker.voices.files import STYLE_SEPARATOR, Voice, voice_folder
from tts_worker.voices.mixing import mix_voices
from tts_worker.voices.packs import InstalledPack, PackPrompt, VoicePack
from tts_worker.voices.store import VoiceStore

log = logging.getLogger(__name__)

MAX_MIX = 8
MAX_NAME_CHARS = 64


class MixPart(BaseModel):
    """A voice of a mix and its weight."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    voice: str = Field(max_length=128)
    weight: float = Field(1.0, gt=0, le=1_000, allow_inf_nan=False)


class NewVoice(VoiceMetadata):
    """A voice to be added.

    Attributes:
        name: Name of the voice: up to 64 letters, digits, _ . or -.
        transcript: The words of the recording; without them only the timbre is cloned.
        style: Adds a style to the voice ``name``, which is then addressed as ``NAME@STYLE``.
        engine: The engine; None selects the first that stores voices.
        mix: Mixes stored voices instead of using a recording.
        prompt: Of a mix: the voice whose prompt audio it uses; None for none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    transcript: str = Field("", max_length=MAX_PROMPT_CHARS)
    style: str = Field(NEUTRAL, pattern=r"^\w[\w-]{0,31}$")
    engine: str | None = Field(None, max_length=64)
    mix: tuple[MixPart, ...] = Field((), max_length=MAX_MIX)
    prompt: str | None = Field(None, max_length=128)

    @field_validator("languages", "tags", mode="before")
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        """Accept a comma-separated text for a list, as a form sends it."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_mix(self) -> NewVoice:
        if self.mix and len({part.voice for part in self.mix}) < 2:
            raise ValueError("mix needs at least two different voices")
        if self.prompt is not None and not self.mix:
            raise ValueError("prompt belongs to a mix")
        return self

    @classmethod
    def parse(cls, data: object) -> NewVoice:
        """Validate fields. Raises InvalidRequest, which names the field."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            location = ".".join(str(part) for part in problem["loc"])
            raise InvalidRequest(f"{location}: {problem['msg']}" if location else str(problem["msg"])) from None

    @property
    def stored_name(self) -> str:
        """Name of the folder: with the style, unless it is the neutral one."""
        return self.name if self.style == NEUTRAL else f"{self.name}{STYLE_SEPARATOR}{self.style}"

    def details(
        self, caller: Caller, source: str, figures: Mapping[str, float | None], notes: tuple[str, ...] = ()
    ) -> VoiceDetails:
        """Return what is stored about the voice."""
        return VoiceDetails(
            **self.metadata(),
            owner=caller.key,
            created_at_s=_now_s(),
            source=source,
            notes=notes,
            figures=dict(figures),
        )


class VoiceLibrary:
    """The stored voices of all engines. All methods belong to one event loop.

    Args:
        catalog: Lists the voices.
        stores: Directories of stored voices, by engine.
        enrolment_of: Returns the name and the enrolment of an engine, which it loads if necessary; None selects the
            first that can enrol voices.
        max_stored: Voices that one directory may hold.
        on_change: Called with engine and name of every voice that was added, replaced or deleted.
        in_use: Returns the voices of utterances in progress. If one is deleted, by any process, its files remain.
    """

    def __init__(
        self,
        catalog: VoiceCatalog,
        stores: Mapping[str, VoiceStore],
        enrolment_of: Callable[[str | None], Awaitable[tuple[str, Enrolment]]],
        *,
        max_stored: int = 1_000,
        on_change: Callable[[str, str], None] = lambda engine, voice: None,
        in_use: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._catalog = catalog
        self._stores = dict(stores)
        self._enrolment_of = enrolment_of
        self._max_stored = max_stored
        self._on_change = on_change
        self._in_use = in_use
        self._stored: dict[str, Mapping[str, VoiceDetails]] = {engine: {} for engine in stores}
        self._locks = {engine: asyncio.Lock() for engine in stores}
        self._adding: dict[tuple[str, str], str | None] = {}  # voices being added -> their owner

    def store(self, engine: str) -> VoiceStore | None:
        """Return the store of an engine."""
        return self._stores.get(engine)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def refresh(self, engine: str | None = None) -> None:
        """Take over what other processes have stored or deleted, for one engine or all."""
        for name in self._stores if engine is None else (engine,):
            async with self._locks[name]:  # results must be applied in the order of the scans
                stored = await asyncio.to_thread(self._stores[name].scan)
                known = self._stored[name]
                if stored != known:
                    self._stored[name] = stored
                    self._catalog.set_stored(name, stored)
                    for voice in stored.keys() | known.keys():
                        if stored.get(voice) != known.get(voice):
                            self._on_change(name, voice)
                # After the catalog has changed: from then on no utterance begins with a deleted voice.
                await self._remove_deleted(self._stores[name])

    async def close(self) -> None:
        """Remove the files of deleted voices that no process needs; others, or the next start, remove the rest."""
        for store in self._stores.values():
            await self._remove_deleted(store)

    async def _remove_deleted(self, store: VoiceStore) -> None:
        if store.has_deleted:
            await asyncio.to_thread(store.remove_deleted, self._in_use())

    async def watch(self, interval_s: float) -> None:
        """Refresh periodically until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.refresh()
            except Exception:
                log.exception("the stored voices cannot be read")

    # -- adding -------------------------------------------------------------------------------------------------------

    async def add(self, new: NewVoice, recording: bytes, *, requires_consent: bool = True) -> VoiceDescription:
        """Add a voice from a recording.

        Args:
            new: Name and description.
            recording: A complete audio file.
            requires_consent: Refuse a voice without ``new.consent``.

        Raises:
            Forbidden: The API key may not add voices.
            InvalidRequest: A field is invalid, no engine stores voices, or the recording is unsuitable; says why.
            IllegalCommand: The name is taken, or the directory is full.
            VoiceQuotaExceeded: The API key has all of its voices.
            TextTooLong: The recording is too large.
            UnknownVoice: A style is added to a voice that does not exist.
            OverCapacity, NotReady: Too many recordings are waiting, the directory cannot be written, or the engine is
                being loaded.
        """
        caller = current_caller()
        caller.require(ApiScope.ENROL)
        if caller.max_recording_bytes is not None and len(recording) > caller.max_recording_bytes:
            raise TextTooLong(
                f'a recording of the API key "{caller.key}" may have at most {caller.max_recording_bytes} bytes'
            )
        if requires_consent and not new.consent:
            raise InvalidRequest("consent: send consent=true if the speaker consents to the use of the recording")
        check_size(recording, new.transcript)
        engine = self._engine(new.engine)
        with await self._reserve(engine, new, caller):
            _, enrolment = await self._enrolment_of(engine)
            voice, figures = await enrolment.compute(recording, new.transcript)
            details = new.details(caller, "recording", _rounded(figures), voice.notes)
            return await self._save(engine, new, voice, details)

    async def mix(self, new: NewVoice) -> VoiceDescription:
        """Add a voice that mixes stored voices of one engine (``new.mix``).

        The voices must be the caller's own or belong to no key: a mix is a copy that its owner keeps.
        Raises as ``add`` does.
        """
        caller = current_caller()
        caller.require(ApiScope.ENROL)
        names = [part.voice for part in new.mix]
        voices = [await self._get(name) for name in (*names, *([new.prompt] if new.prompt else ()))]
        for voice in voices:
            if voice.stored is None:
                raise InvalidRequest(f'"{voice.name}" is not a stored voice; only those can be mixed')
            if voice.engine != voices[0].engine:
                raise InvalidRequest("only voices of the same engine can be mixed")
            if voice.stored.owner is not None:
                self._check_owner(voice, caller)
        new = new.model_copy(update={"consent": all(v.stored is not None and v.stored.consent for v in voices)})
        engine = self._engine(new.engine or voices[0].engine)
        if engine != voices[0].engine:
            raise InvalidRequest(f"the voices belong to the engine {voices[0].engine}, not {engine}")
        with await self._reserve(engine, new, caller):
            with _hidden_paths():
                loaded = await asyncio.to_thread(lambda: [self._stores[engine].load(voice.name) for voice in voices])
            weights = [part.weight for part in new.mix]
            prompt = loaded[-1] if new.prompt else None
            mixed = mix_voices(list(zip(loaded, weights, strict=False)), prompt)
            shares = {
                voice.name: round(weight / sum(weights), 4) for voice, weight in zip(voices, weights, strict=False)
            }
            if prompt is not None:
                shares.setdefault(voices[-1].name, 0.0)
            details = new.details(caller, "mix", shares).model_copy(update={"has_prompt": prompt is not None})
            saved = await self._save(engine, new, mixed, details)
            gone = shares.keys() - self._stored[engine].keys()
            if gone:  # deleted while the mix was computed
                await self._delete(engine, {new.stored_name})
                raise UnknownVoice(f'the voice "{min(gone)}" was deleted')
            return saved

    async def import_packs(self, engine: str, packs: Iterable[InstalledPack]) -> None:
        """Store the recordings of voice packs as voices of an engine, unless they are stored already.

        A bad recording is logged and skipped; other voices of the same name are not replaced.
        """
        if engine not in self._stores:
            return
        await self.refresh(engine)
        for installed in packs:
            try:
                for prompt in await asyncio.to_thread(installed.prompts):
                    await self._import_prompt(engine, installed.pack, prompt)
            except TTSWorkerError as error:
                log.error("the voice pack %s cannot be used: %s", installed.folder, error.message)
        await self.refresh(engine)

    async def _import_prompt(self, engine: str, pack: VoicePack, prompt: PackPrompt) -> None:
        name = pack.name if prompt.style == NEUTRAL else f"{pack.name}{STYLE_SEPARATOR}{prompt.style}"
        source_hash = await asyncio.to_thread(lambda: prompt.source_hash)
        details = VoiceDetails(
            **pack.metadata(), capabilities=pack.capabilities, source="pack", source_hash=source_hash
        )
        known = self._stored[engine].get(name)
        if known is not None:
            if known.source != "pack":
                raise IllegalCommand(f"there is another voice {name!r} already")
            kept = {key: getattr(known, key) for key in ("created_at_s", "figures", "notes")}
            if known == details.model_copy(update=kept):
                return
        _, enrolment = await self._enrolment_of(engine)
        voice, figures = await enrolment.compute(await asyncio.to_thread(prompt.read), prompt.text)
        measured = {"created_at_s": _now_s(), "figures": _rounded(figures), "notes": voice.notes}
        await asyncio.to_thread(
            self._stores[engine].save, name, voice, details.model_copy(update=measured), replace=known is not None
        )

    def unused_name(self, title: str) -> str:
        """Return a name for a voice that is made of ``title`` and that no voice has."""
        base = re.sub(r"[^\w.-]+", "-", title).strip("-._")[:48] or "voice"
        while self._catalog.is_taken(name := f"{base}-{secrets.token_hex(3)}"):
            pass
        return name

    def _engine(self, engine: str | None) -> str:
        if not self._stores:
            raise InvalidRequest("no engine of this worker stores voices: it needs a CosyVoice model")
        if engine is not None and engine not in self._stores:
            raise InvalidRequest(f'engine "{engine}" stores no voices; those that do: {", ".join(self._stores)}')
        return engine or next(iter(self._stores))

    async def _reserve(self, engine: str, new: NewVoice, caller: Caller) -> AbstractContextManager[None]:
        """Check name and quotas; return a context in which the name is reserved in this process."""
        name = new.stored_name
        voice_folder(self._stores[engine].folder, name)  # raises InvalidRequest for an invalid name
        if split_style(new.name)[1] != NEUTRAL or STYLE_SEPARATOR in new.name:
            raise InvalidRequest("a name contains no @: give the style in the field style")
        await self.refresh()
        if new.style != NEUTRAL:
            base = self._catalog.get(new.name)
            if base.stored is None or base.engine != engine:
                raise InvalidRequest(f"a style can only be added to a stored voice of engine {engine}")
            self._check_owner(base, caller)
        if self._catalog.is_taken(name) or (engine, name) in self._adding:
            raise IllegalCommand(f"there is a voice {name!r} already; choose another name or delete it first")
        stored = self._stored[engine]
        being_added = [owner for (other, _), owner in self._adding.items() if other == engine]
        if len(stored) + len(being_added) >= self._max_stored:
            raise IllegalCommand(f"all {self._max_stored} voices of engine {engine} are taken: delete one first")
        if caller.key is not None and caller.max_voices is not None:
            every = [details.owner for voices in self._stored.values() for details in voices.values()]
            owned = [*every, *self._adding.values()].count(caller.key)
            if owned >= caller.max_voices:
                raise VoiceQuotaExceeded(
                    f'the API key "{caller.key}" has all of its {caller.max_voices} voices: delete one first'
                )
        return self._reserved((engine, name), caller.key)

    @contextmanager
    def _reserved(self, place: tuple[str, str], owner: str | None) -> Iterator[None]:
        if place in self._adding:
            raise IllegalCommand(f"there is a voice {place[1]!r} already; choose another name or delete it first")
        self._adding[place] = owner
        try:
            yield
        finally:
            del self._adding[place]

    async def _save(self, engine: str, new: NewVoice, voice: Voice, details: VoiceDetails) -> VoiceDescription:
        with _hidden_paths():
            await asyncio.to_thread(self._stores[engine].save, new.stored_name, voice, details)
        await self.refresh(engine)
        return self._catalog.get(new.stored_name)

    # -- deleting -----------------------------------------------------------------------------------------------------

    async def delete(self, name: str) -> tuple[str, ...]:
        """Delete a stored voice with its styles, or one style of it, and the mixes made of them.

        Utterances that were accepted with one of them continue.

        Returns:
            The names of the mixes.

        Raises:
            Forbidden: The API key may not delete voices, or another key added it.
            UnknownVoice: There is no such voice.
            IllegalCommand: The voice belongs to its engine.
            OverCapacity: The directory cannot be changed.
        """
        caller = current_caller()
        caller.require(ApiScope.ENROL)
        voice = await self._get(name)
        if voice.stored is None:
            raise IllegalCommand(f'the voice "{voice.name}" belongs to its engine and cannot be deleted')
        self._check_owner(voice, caller)
        mixes = self._mixes_of(voice.engine, voice.name)
        if mixes:
            log.info("the voice %s is deleted with the mixes made of it: %s", voice.name, ", ".join(mixes))
        await self._delete(voice.engine, (voice.name, *mixes))
        return mixes

    async def _delete(self, engine: str, names: Iterable[str]) -> None:
        try:
            with _hidden_paths():
                for name in names:
                    await asyncio.to_thread(self._stores[engine].delete, name)
        finally:
            await self.refresh(engine)

    def _mixes_of(self, engine: str, name: str) -> tuple[str, ...]:
        """The mixes of a voice and its styles, and those of these mixes."""
        stored = self._stored[engine]
        found = {each for each in stored if each == name or each.startswith(name + STYLE_SEPARATOR)}
        sources = set(found)
        while found:
            found = {
                mix
                for mix, details in stored.items()
                if details.source == "mix" and mix not in sources and not found.isdisjoint(details.figures)
            }
            sources |= found
        return tuple(sorted(each for each in sources if stored[each].source == "mix" and each != name))

    def _check_owner(self, voice: VoiceDescription, caller: Caller) -> None:
        """Raises Forbidden unless the caller's key added the voice or may administer the worker."""
        owner = voice.stored.owner if voice.stored is not None else None
        if caller.key is not None and owner != caller.key and ApiScope.ADMIN not in caller.scopes:
            raise Forbidden(f'the API key "{caller.key}" did not add the voice "{voice.name}"')

    async def _get(self, name: str) -> VoiceDescription:
        await self.refresh()
        return self._catalog.get(name)


@contextmanager
def _hidden_paths() -> Iterator[None]:
    """Log an error of the directory, and raise one without its path instead."""
    try:
        yield
    except BundleError as error:
        log.error("%s", error.message)
        raise OverCapacity("the worker cannot read or write its voices; its log says why", retry_after_s=5.0) from None


def _rounded(figures: PromptFigures) -> dict[str, float | None]:
    return {key: None if value is None else round(value, 4) for key, value in asdict(figures).items()}


def _now_s() -> float:
    return datetime.now(timezone.utc).timestamp()
