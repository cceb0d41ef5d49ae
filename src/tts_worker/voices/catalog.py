"""The voice catalog. An unknown voice name is an error; there is no fallback voice."""

from __future__ import annotations

import difflib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from textwrap import shorten

from tts_worker.errors import ConfigError, UnknownVoice
from tts_worker.text.lexicon import Lexicon
from tts_worker.types import EngineInfo
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.details import NEUTRAL, VoiceDetails, split_style
from tts_worker.voices.named_mixes import mix_of, name_of
from tts_worker.voices.packs import VoicePack

log = logging.getLogger(__name__)

_MAX_REMOVED = 1_000
_SUCCESSORS = {"kumo": "zm_yunjian", "gongitsune": "zf_xiaobei"}
"""Voices that no engine has any more, and what replaces them."""


@dataclass(slots=True)
class _EngineVoices:
    """What the catalog knows of an engine.

    Attributes:
        order: The voices of the engine that was loaded first come first; None for one that was never loaded.
    """

    family: str
    info: EngineInfo
    loaded: bool
    order: int | None = None


class VoiceCatalog:
    """The voices of all engines.

    Args:
        packs: Voice packs, for descriptions and lexicons.
        default: Voice of requests without one; None selects the first voice.
        aliases: Alternative name -> voice; those of voice packs come after them.
        on_demand: List the voices of engines that are not loaded.

    Voices of an engine that is not loaded (``add_unloaded``, ``mark_unloaded``) are known, and listed if ``on_demand``:
    a session for one loads the engine. Enrolled voices are unlisted but can be addressed by name.
    """

    def __init__(
        self,
        packs: Iterable[VoicePack] = (),
        *,
        default: str | None = None,
        aliases: Mapping[str, str] | None = None,
        on_demand: bool = False,
    ) -> None:
        self._packs = {(pack.family, pack.name): pack for pack in packs}
        self._voices: dict[str, VoiceDescription] = {}
        self._unloaded: dict[str, VoiceDescription] = {}
        self._enrolled: dict[str, VoiceDescription] = {}
        self._styles: dict[str, VoiceDescription] = {}  # by NAME@STYLE; not listed
        self._removed: dict[str, VoiceDescription] = {}  # deleted while sessions may use them
        self._engines: dict[str, _EngineVoices] = {}
        self._stored: dict[str, Mapping[str, VoiceDetails]] = {}  # by engine, also of one that is not known yet
        self._ever_stored: dict[str, set[str]] = {}  # names: ``info.voices`` may still have those
        self._orders = itertools.count(1)
        self._on_demand = on_demand
        self._wanted_default = default
        self._first: str | None = None
        self._aliases = dict(aliases or {})

    def add(self, engine: str, family: str, info: EngineInfo) -> None:
        """Add the voices of a started engine. Raises ConfigError if another engine has a voice of the same name."""
        self._check_names(engine, info)
        known = self._engine(engine, family, info)
        known.info = info
        if known.order is None:  # an engine that is loaded again keeps its place
            known.order = next(self._orders)
        known.loaded = True
        self._publish(engine)

    def add_unloaded(self, engine: str, family: str, info: EngineInfo) -> None:
        """Add the known voices of an engine that is not loaded. Raises ConfigError as ``add`` does."""
        self._check_names(engine, info)
        self._engine(engine, family, info)
        self._publish(engine)

    def mark_unloaded(self, engine: str) -> None:
        """Mark an engine as unloaded: its voices stay known, enrolled voices are removed."""
        if engine in self._engines:
            self._engines[engine].loaded = False
            self._publish(engine)
        self.remove_all_enrolled(engine)

    def remove_all_enrolled(self, engine: str) -> None:
        """Remove the enrolled voices of an engine; sessions that have one keep it."""
        for name in [name for name, voice in self._enrolled.items() if voice.engine == engine]:
            self._remember_removed(self._enrolled.pop(name))

    def is_loaded(self, engine: str) -> bool:
        """Whether an engine is loaded."""
        return engine in self._engines and self._engines[engine].loaded

    def stored(self, engine: str) -> Mapping[str, VoiceDetails]:
        """Return the stored voices of an engine, by name."""
        return self._stored.get(engine, {})

    def set_stored(self, engine: str, stored: Mapping[str, VoiceDetails]) -> None:
        """Replace the stored voices of an engine. A name that another engine uses stays with that engine."""
        self._stored[engine] = stored
        self._ever_stored.setdefault(engine, set()).update(stored)
        if engine in self._engines:
            self._publish(engine)

    def _engine(self, engine: str, family: str, info: EngineInfo) -> _EngineVoices:
        return self._engines.setdefault(engine, _EngineVoices(family, info, loaded=False))

    def _check_names(self, engine: str, info: EngineInfo) -> None:
        for name in info.voices:
            other = self._voices.get(name) or self._unloaded.get(name)
            if other is not None and other.engine != engine:
                raise ConfigError(
                    f"engines.{engine}: engine {other.engine} already has a voice named {name}; run the engines in "
                    "separate workers, or rename the voice in a model directory (spk2info.pt)"
                )

    def _withdraw(self, engine: str) -> dict[str, VoiceDescription]:
        """Remove the voices of an engine and return them."""
        withdrawn = {}
        for voices in (self._voices, self._unloaded, self._styles):
            for name in [name for name, voice in voices.items() if voice.engine == engine]:
                withdrawn[name] = voices.pop(name)
        return withdrawn

    def _publish(self, engine: str) -> None:
        """Build the voices of an engine anew."""
        known = self._engines[engine]
        before = self._withdraw(engine)
        voices: dict[str, VoiceDescription] = {}
        # A voice of the engine itself takes precedence over a stored one.
        stored = self.stored(engine)
        own = [name for name in known.info.voices if name not in self._ever_stored.get(engine, ())]
        for name in dict.fromkeys((*own, *sorted(stored))):
            other = self._voices.get(name) or self._unloaded.get(name)
            if other is not None:
                log.warning("the stored voice %r of engine %s is hidden by engine %s", name, engine, other.engine)
                continue
            details = None if name in own else stored[name]
            voice = self._describe(engine, known, name, details)
            if split_style(name)[1] == NEUTRAL:
                voices[name] = voice
            else:
                self._styles[name] = voice
        (self._voices if known.loaded else self._unloaded).update(voices)
        order = {name: other.order or 0 for name, other in self._engines.items()}
        self._voices = dict(sorted(self._voices.items(), key=lambda item: order.get(item[1].engine, 0)))
        self._choose_first()
        for name in before.keys() - voices.keys() - self._styles.keys():
            self._remember_removed(before[name])

    def _remember_removed(self, voice: VoiceDescription) -> None:
        self._removed[voice.name] = voice
        if len(self._removed) > _MAX_REMOVED:
            del self._removed[next(iter(self._removed))]

    def _choose_first(self) -> None:
        """Choose the voice of requests without one: that of the engine which was loaded first.

        While that engine is loaded again, such requests wait for it: the voice of another engine would surprise.
        """
        order = {name: other.order for name, other in self._engines.items() if other.order is not None}
        known = {**self._voices, **self._unloaded}
        used = [name for name, voice in known.items() if voice.engine in order]
        self._first = min(used, key=lambda name: order[known[name].engine], default=next(iter(known), None))

    def _describe(self, engine: str, known: _EngineVoices, name: str, details: VoiceDetails | None) -> VoiceDescription:
        base = split_style(name)[0]
        families = (known.family, dict(known.info.extra).get("family", ""))
        found = (self._packs.get((family, base)) for family in families)
        pack = next((each for each in found if each is not None), VoicePack(name=base, family=known.family))
        about = details or VoiceDetails()
        styles = sorted(split_style(other)[1] for other in self.stored(engine) if other.startswith(f"{base}@"))
        return VoiceDescription(
            name=name,
            engine=engine,
            info=known.info,
            languages=about.languages or pack.languages or known.info.languages,
            description=about.description or pack.description,
            gender=about.gender or pack.gender,
            lexicon=Lexicon.from_mapping(pack.lexicon, name=f"voicepack {base}: lexicon"),
            tags=about.tags or pack.tags,
            styles=(NEUTRAL, *styles) if styles else (),
            license=about.license or pack.license,
            loudness_lufs=pack.loudness_lufs if about.loudness_lufs is None else about.loudness_lufs,
            capabilities=_capabilities(name, known.info, about, pack),
            aliases=pack.aliases,
            stored=details,
        )

    def add_enrolled(self, name: str, engine: str) -> None:
        """Add an enrolled voice of a loaded engine; it is never listed."""
        info = self._engines[engine].info
        self._enrolled[name] = VoiceDescription(name, engine, info, info.languages, capabilities=info.capabilities)

    def remove_enrolled(self, name: str) -> None:
        self._enrolled.pop(name, None)

    def check(self) -> None:
        """Check the default and the aliases once all engines are added. Raises ConfigError naming an unknown voice."""
        voices = {**self._unloaded, **self._voices}
        known = ", ".join(sorted(voices)) or "none"
        if self._wanted_default is not None and self._wanted_default not in voices:
            raise ConfigError(f"voices.default: unknown voice {self._wanted_default!r}; available: {known}")
        for alias, name in self._aliases.items():
            if name not in voices:
                raise ConfigError(f"voices.aliases.{alias}: unknown voice {name!r}; available: {known}")
            if alias in voices:
                raise ConfigError(f"voices.aliases.{alias}: a voice already has that name")

    @property
    def default(self) -> str | None:
        return self._wanted_default or self._first

    def __iter__(self) -> Iterator[VoiceDescription]:
        return iter((*self._voices.values(), *(self._unloaded.values() if self._on_demand else ())))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, name: str | None) -> VoiceDescription:
        """Return the voice named ``name`` (None: the default). Raises UnknownVoice."""
        requested = name if name is not None else self.default
        if requested is None:
            ready = "this worker has no voice yet: add one with POST /v1/voices"
            raise UnknownVoice(ready if self._engines else "no engine with a voice is running")
        if (voice := self._find(requested)) is not None:
            return voice
        base, style = split_style(requested)
        if style != NEUTRAL and (voice := self._find(base)) is not None:
            styles = ", ".join(voice.styles) or NEUTRAL
            raise UnknownVoice(f'voice "{voice.name}" has no style "{style[:32]}"; it has: {styles}')
        if mix_of(requested) is not None:
            groups = sorted(", ".join(group) for known in self._engines.values() for group in known.info.mixable)
            raise UnknownVoice(f'no mix "{requested[:64]}"; voices that can be mixed: {"; ".join(groups) or "none"}')
        known = sorted({*self._voices, *self._unloaded})
        similar = difflib.get_close_matches(requested[:64], known, n=1)
        names = shorten(", ".join(known) or "none", 500, placeholder=" ...")
        hint = f'did you mean "{similar[0]}"?' if similar else f"available: {names}"
        if successor := _SUCCESSORS.get(requested):
            hint = f'"{successor}" replaces it: pip install ./packages/tts-worker-voices in the clone'
        raise UnknownVoice(f'unknown voice "{requested[:64]}"; {hint}')

    def get_in_use(self, name: str) -> VoiceDescription:
        """Return a voice that a session has, even if it was deleted meanwhile. Raises UnknownVoice."""
        return self._find(name) or self._removed.get(name) or self.get(name)

    def is_deleted(self, name: str) -> bool:
        """Whether a voice that a session has was a stored one and is deleted."""
        removed = self._removed.get(name)
        return removed is not None and removed.stored is not None and self._find(name) is None

    def _find(self, name: str) -> VoiceDescription | None:
        name = self._aliases.get(name, name)
        if name.endswith(f"@{NEUTRAL}"):
            name = split_style(name)[0]
        base, style = split_style(name)
        if base in self._aliases and style != NEUTRAL:
            name = f"{self._aliases[base]}@{style}"
        for voices in (self._voices, self._enrolled, self._unloaded, self._styles):
            if name in voices:
                return voices[name]
        named = (*self._voices.values(), *self._unloaded.values())
        return next((voice for voice in named if name in voice.aliases), None) or self._mixed(name)

    def _mixed(self, name: str) -> VoiceDescription | None:
        """Return the mix that a name describes; it has the language and lexicon of its first voice."""
        voices: dict[str, VoiceDescription] = {}
        shares: dict[str, float] = {}
        for part, share in mix_of(name) or ():
            if (voice := self._find(part)) is None:
                return None
            voices[voice.name] = voice  # which may have two names
            shares[voice.name] = shares.get(voice.name, 0.0) + share
        first = next(iter(voices.values()), None)
        if first is None or len(voices) == 1 or not any(voices.keys() <= set(group) for group in first.info.mixable):
            return None
        levels = [shares[name] * each.loudness_lufs for name, each in voices.items() if each.loudness_lufs is not None]
        return replace(
            first,
            name=name_of(tuple(shares.items())),
            description="a mix by name",
            gender=None,
            loudness_lufs=sum(levels) if len(levels) == len(voices) else None,
            aliases=(),
        )

    def is_taken(self, name: str) -> bool:
        """Whether a voice or an alias has the name."""
        return self._find(name) is not None


def _capabilities(name: str, info: EngineInfo, details: VoiceDetails, pack: VoicePack) -> tuple[str, ...]:
    """Return the capabilities of a voice. Instructions need prompt audio, which a plain mix does not have."""
    follows_instructions = details.has_prompt and name not in info.uninstructed
    of_engine = (each for each in info.capabilities if follows_instructions or each != "instruct")
    return tuple(dict.fromkeys((*of_engine, *details.capabilities, *pack.capabilities)))
