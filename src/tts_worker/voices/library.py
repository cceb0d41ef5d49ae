"""The voices of a worker, as resources: one owner of catalog, stored voices and enrollment.

A voice is computed on the enrollment thread of its engine and stored in the engine's directory. Every process with the
same directory lists it within a second, and knows it as soon as a request names it. A voice of a request is enrolled
in memory.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from types import MappingProxyType
from typing import Protocol

from tts_worker.audio.prompt import PromptFigures
from tts_worker.callers import ApiScope, Caller, current_caller
from tts_worker.errors import (
    BundleError,
    Forbidden,
    IllegalCommand,
    InvalidRequest,
    NotReady,
    OverCapacity,
    TextTooLong,
    TTSWorkerError,
    UnknownVoice,
    VoiceQuotaExceeded,
)
from tts_worker.types import EngineInfo
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.details import NEUTRAL, VoiceDetails, split_style
from tts_worker.voices.enrollment import Enrollment, check_size
from tts_worker.voices.files import STYLE_SEPARATOR, Voice, voice_folder
from tts_worker.voices.mixing import mix_voices
from tts_worker.voices.packs import InstalledPack, PackPrompt, VoicePack
from tts_worker.voices.store import VoiceStore
from tts_worker.voices.upload import NewVoice, now_s

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
"""Interval at which the directories of stored voices are read."""
_RETRY_AFTER_S = 1.0


class VoiceHost(Protocol):
    """The sessions and engines that use the voices (``session.hub.SessionHub``)."""

    @property
    def voices_in_use(self) -> Collection[str]:
        """The voices of utterances in progress. If one is deleted, by any process, its files remain."""
        ...

    @property
    def session_voices(self) -> Collection[str]:
        """The voices in use, and those of the next utterances of all sessions."""
        ...

    async def use_engine(self, engine: str) -> None:
        """Load an engine unless it is loaded. Raises Draining, NotReady, OverCapacity."""
        ...

    def voice_changed(self, engine: str, voice: str) -> None:
        """Take notice of a voice that was added, replaced, deleted or evicted."""
        ...


class VoiceLibrary:
    """The voices of a worker: the catalog, the stored voices of all engines, and their enrollment.

    All methods belong to one event loop. ``connect`` names the host, which is told of every change.

    Args:
        catalog: Lists the voices.
        stores: Directories of stored voices, by engine.
        enrolling: Configured engines that can enroll voices, loaded or not.
        max_stored: Voices that one directory may hold.
    """

    def __init__(
        self,
        catalog: VoiceCatalog,
        stores: Mapping[str, VoiceStore] = MappingProxyType({}),
        *,
        enrolling: Collection[str] = (),
        max_stored: int = 1_000,
    ) -> None:
        self.catalog = catalog
        self._stores = dict(stores)
        self._enrolling = enrolling
        self._max_stored = max_stored
        self._host: VoiceHost | None = None
        self._enrollments: dict[str, Enrollment] = {}  # of loaded engines
        self._locks = {engine: asyncio.Lock() for engine in stores}
        self._adding: dict[tuple[str, str], str | None] = {}  # voices being added -> their owner

    def connect(self, host: VoiceHost) -> None:
        """Name the host, once."""
        self._host = host

    def _announce(self, engine: str, voice: str) -> None:
        if self._host is not None:
            self._host.voice_changed(engine, voice)

    # -- engines ------------------------------------------------------------------------------------------------------

    def add_engine(self, name: str, family: str, info: EngineInfo, enrollment: Enrollment | None = None) -> None:
        """Add the voices of a started engine, which replace those of an engine of that name.

        Raises:
            ConfigError: Another engine has one of its voices.
        """
        self.catalog.add(name, family, info)
        self.catalog.remove_all_enrolled(name)
        if enrollment is not None:
            self._enrollments[name] = enrollment

    def withdraw_engine(self, name: str) -> None:
        """Keep the voices of an engine that is unloaded as known ones, without those that were enrolled."""
        self.catalog.mark_unloaded(name)
        self._enrollments.pop(name, None)

    def enrollment(self, engine: str) -> Enrollment | None:
        """Return the enrollment of a loaded engine; None if it cannot enroll voices."""
        return self._enrollments.get(engine)

    def count_pending(self, engine: str) -> int:
        """Number of recordings that an engine is analyzing."""
        enrollment = self._enrollments.get(engine)
        return 0 if enrollment is None else enrollment.pending

    @property
    def can_enroll(self) -> bool:
        """Whether a loaded engine can enroll voices from recordings."""
        return bool(self._enrollments)

    @property
    def can_store(self) -> bool:
        """Whether an engine has a directory of voices."""
        return bool(self._stores)

    @property
    def can_add(self) -> bool:
        """Whether voices made of recordings can be stored, perhaps after an engine was loaded."""
        return self.can_store and bool(self._enrollments or self._enrolling)

    async def _enrollment_of(self, engine: str | None) -> tuple[str, Enrollment]:
        """Return an engine that can enroll voices and its enrollment; load it if necessary.

        Raises:
            InvalidRequest: No configured engine can enroll voices.
            Draining, NotReady, OverCapacity: The engine cannot be used now.
        """
        name = _first(self._enrollments, engine) or _first(self._enrolling, engine)
        if name is None:
            raise InvalidRequest("no engine of this worker can enroll voices from recordings: use a listed voice")
        if self._host is not None:
            await self._host.use_engine(name)
        if name not in self._enrollments:
            raise _unloading(name)
        return name, self._enrollments[name]

    # -- reading ------------------------------------------------------------------------------------------------------

    async def refresh(self, engine: str | None = None) -> None:
        """Take over what other processes have stored or deleted, for one engine or all."""
        for name in self._stores if engine is None else (engine,):
            async with self._locks[name]:  # results must be applied in the order of the scans
                stored = await asyncio.to_thread(self._stores[name].scan)
                known = self.catalog.stored(name)
                if stored != known:
                    self.catalog.set_stored(name, stored)
                    for voice in stored.keys() | known.keys():
                        if stored.get(voice) != known.get(voice):
                            self._announce(name, voice)
                # After the catalog has changed: from then on no utterance begins with a deleted voice.
                await self._remove_deleted(self._stores[name])

    async def look_up(self, name: str | None) -> None:
        """Take over the voice ``name`` (None: the default) if another process stored it a moment ago.

        If the voices cannot be read, it stays unknown.
        """
        try:
            self.catalog.get(name)
        except UnknownVoice:
            try:
                await self.refresh()
            except (OSError, TTSWorkerError):
                log.exception("the stored voices cannot be read")

    async def close(self) -> None:
        """Remove the files of deleted voices that no process needs; others, or the next start, remove the rest."""
        for store in self._stores.values():
            await self._remove_deleted(store)

    async def _remove_deleted(self, store: VoiceStore) -> None:
        if store.has_deleted:
            in_use = () if self._host is None else self._host.voices_in_use
            await asyncio.to_thread(store.remove_deleted, in_use)

    async def watch(self) -> None:
        """Refresh periodically until cancelled; a request that names an unknown voice refreshes at once."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                await self.refresh()
            except Exception:
                log.exception("the stored voices cannot be read")

    # -- adding -------------------------------------------------------------------------------------------------------

    async def enroll(self, recording: bytes, transcript: str = "", engine: str | None = None) -> VoiceDescription:
        """Enroll a voice from a recording. It is unlisted and cached; voices of sessions are not evicted.

        The same recording and transcript give the same voice. Waits for an engine that is loaded on demand.

        Args:
            recording: A complete audio file.
            transcript: The words of the recording. Without it only the timbre is cloned.
            engine: The engine to use; None selects the first that can enroll voices.

        Raises:
            Forbidden: The API key may not enroll voices.
            InvalidRequest: No configured engine can enroll voices, or the recording is unusable.
            TextTooLong: The recording or the transcript is too long.
            OverCapacity: Too many enrollments are running.
            Draining: The worker is shutting down.
            NotReady: The engine is not ready or still being loaded.
        """
        current_caller().require(ApiScope.ENROLL)
        name, enrollment = await self._enrollment_of(engine)
        host = self._host
        voice = await enrollment.voice_of(recording, transcript, lambda: () if host is None else host.session_voices)
        if not self.catalog.is_loaded(name):
            raise _unloading(name)
        for evicted in voice.evicted:
            self.catalog.remove_enrolled(evicted)
            self._announce(name, evicted)
        self.catalog.add_enrolled(voice.name, name)
        return self.catalog.get(voice.name)

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
        caller = self._changing_caller()
        if caller.max_recording_bytes is not None and len(recording) > caller.max_recording_bytes:
            raise TextTooLong(
                f'a recording of the API key "{caller.key}" may have at most {caller.max_recording_bytes} bytes'
            )
        if requires_consent and not new.consent:
            raise InvalidRequest("consent: send consent=true if the speaker consents to the use of the recording")
        check_size(recording, new.transcript)
        engine = self._engine(new.engine)
        await self.refresh()
        with self._reserved(engine, new, caller):
            _, enrollment = await self._enrollment_of(engine)
            voice, figures = await enrollment.compute(recording, new.transcript)
            details = new.details(caller, "recording", _rounded(figures), voice.notes)
            return await self._save(engine, new, voice, details)

    async def mix(self, new: NewVoice) -> VoiceDescription:
        """Add a voice that mixes stored voices of one engine (``new.mix``).

        The voices must be the caller's own or belong to no key: a mix is a copy that its owner keeps.
        Raises as ``add`` does.
        """
        caller = self._changing_caller()
        await self.refresh()
        names = [part.voice for part in new.mix]
        voices = [self.catalog.get(name) for name in (*names, *([new.prompt] if new.prompt else ()))]
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
        with self._reserved(engine, new, caller):
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
            gone = shares.keys() - self.catalog.stored(engine).keys()
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
        known = self.catalog.stored(engine).get(name)
        if known is not None:
            if known.source != "pack":
                raise IllegalCommand(f"there is another voice {name!r} already")
            kept = {key: getattr(known, key) for key in ("created_at_s", "figures", "notes")}
            if known == details.model_copy(update=kept):
                return
        _, enrollment = await self._enrollment_of(engine)
        voice, figures = await enrollment.compute(await asyncio.to_thread(prompt.read), prompt.text)
        measured = {"created_at_s": now_s(), "figures": _rounded(figures), "notes": voice.notes}
        await asyncio.to_thread(
            self._stores[engine].save, name, voice, details.model_copy(update=measured), replace=known is not None
        )

    def unused_name(self, title: str) -> str:
        """Return a name for a voice that is made of ``title`` and that no voice has."""
        base = re.sub(r"[^\w.-]+", "-", title).strip("-._")[:48] or "voice"
        while self.catalog.is_taken(name := f"{base}-{secrets.token_hex(3)}"):
            pass
        return name

    def _changing_caller(self) -> Caller:
        """Return the caller, who may change the stored voices. Raises Forbidden; InvalidRequest if there are none."""
        caller = current_caller()
        caller.require(ApiScope.ENROLL)
        if not self._stores:
            raise InvalidRequest("no engine of this worker stores voices: it needs a CosyVoice model")
        return caller

    def _engine(self, engine: str | None) -> str:
        if engine is not None and engine not in self._stores:
            raise InvalidRequest(f'engine "{engine}" stores no voices; those that do: {", ".join(self._stores)}')
        return engine or next(iter(self._stores))

    @contextmanager
    def _reserved(self, engine: str, new: NewVoice, caller: Caller) -> Iterator[None]:
        """Check name and quotas, and reserve the name in this process."""
        name = new.stored_name
        voice_folder(self._stores[engine].folder, name)  # raises InvalidRequest for an invalid name
        if split_style(new.name)[1] != NEUTRAL or STYLE_SEPARATOR in new.name:
            raise InvalidRequest("a name contains no @: give the style in the field style")
        if new.style != NEUTRAL:
            base = self.catalog.get(new.name)
            if base.stored is None or base.engine != engine:
                raise InvalidRequest(f"a style can only be added to a stored voice of engine {engine}")
            self._check_owner(base, caller)
        if self.catalog.is_taken(name) or (engine, name) in self._adding:
            raise IllegalCommand(f"there is a voice {name!r} already; choose another name or delete it first")
        stored = self.catalog.stored(engine)
        being_added = [owner for (other, _), owner in self._adding.items() if other == engine]
        if len(stored) + len(being_added) >= self._max_stored:
            raise IllegalCommand(f"all {self._max_stored} voices of engine {engine} are taken: delete one first")
        if caller.key is not None and caller.max_voices is not None:
            every = [details.owner for name in self._stores for details in self.catalog.stored(name).values()]
            owned = [*every, *self._adding.values()].count(caller.key)
            if owned >= caller.max_voices:
                raise VoiceQuotaExceeded(
                    f'the API key "{caller.key}" has all of its {caller.max_voices} voices: delete one first'
                )
        self._adding[engine, name] = caller.key
        try:
            yield
        finally:
            del self._adding[engine, name]

    async def _save(self, engine: str, new: NewVoice, voice: Voice, details: VoiceDetails) -> VoiceDescription:
        with _hidden_paths():
            await asyncio.to_thread(self._stores[engine].save, new.stored_name, voice, details)
        await self.refresh(engine)
        return self.catalog.get(new.stored_name)

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
        caller = self._changing_caller()
        await self.refresh()
        voice = self.catalog.get(name)
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
        stored = self.catalog.stored(engine)
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


def _first(names: Iterable[str], requested: str | None) -> str | None:
    """The requested name if it is among ``names``; without one the first of them."""
    return next((name for name in names if requested in (None, name)), None)


def _unloading(engine: str) -> NotReady:
    return NotReady(f"the engine {engine} is being unloaded", retry_after_s=_RETRY_AFTER_S)
