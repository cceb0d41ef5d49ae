"""Every quirk of the reference that shapes the sound, by name, with a switch. The default is what sounds right and
streams consistently; ``Compat.reference()`` is the reference number for number.

A quirk that is part of how the weights were trained is no switch and stands where it is computed: the rotation of
head 0 only (flow/dit.py), the phase that stands still within a frame (hift.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Compat:
    """True = do as the reference does."""

    torch_draws: bool = False
    """Draw through torch's default generator, call for call, instead of by hash of (seed, step)."""
    eos_masked_by_wrong_id: bool = False
    """CosyVoice3 masks the start id where it means the end id: no minimum length, and an end in the middle of
    interleaved text. Other stop ids may be drawn, too, and end the sound or fail."""
    full_mask_in_last_chunk: bool = False
    """Compute the last chunk under full attention: it does not continue what was heard."""
    loud_cross_fade: bool = False
    """CosyVoice2: restart the phase in every chunk and cross-fade with a window that adds up to 1.08 (+0.67 dB)."""
    float32_phase: bool = False
    """Accumulate the phase of the harmonics in float32: it coarsens as the sound goes on."""
    hop_shared_by_requests: bool = False
    """Let the growing chunk size of one request be the first of the next."""
    growing_hop: bool = False
    """Compute chunks of 25, 50, 100, 100... tokens, the first with what completes the prompt's last chunk."""
    token_fed_twice: bool = False
    """Interleaved text: feed the last input again when the text ends right after a fill id."""
    speaks_before_text: bool = False
    """Interleaved text, CosyVoice3 without prompt speech: decode from the instruction alone."""
    unread_prompt_dropped: bool = False
    """Interleaved text too short for the prompt's speech: drop the rest of the prompt instead of placing it last."""
    endless_interleave: bool = False
    """Interleaved text: no limit to the length."""
    instruct_ignored_by_saved_voice: bool = False
    """instruct2 with a saved voice: use the voice's own prompt text, not the instruction."""
    vc_prompt_uncut: bool = False
    """Voice conversion: do not cut the prompt's mel to two frames per token (one frame too many may come out)."""
    prompt_tag_demanded: bool = False
    """CosyVoice3: fail without <|endofprompt|> in the text instead of adding it."""

    silence_limit_tokens: int = 5
    """CosyVoice3: so many silent tokens in a row are voiced, further ones dropped. Kept by default."""

    @classmethod
    def reference(cls) -> Compat:
        """Number for number."""
        return replace(cls(), **{f.name: True for f in fields(cls) if f.type == "bool"})


SILENT_TOKENS = {
    "cosyvoice2": frozenset[int](),
    "cosyvoice3": frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323}),
}
"""Speech ids that are silence or breath, by family."""


class SilenceFilter:
    """Drops what goes beyond ``limit`` silent tokens in a row (they stay in the language model's history)."""

    def __init__(self, silent: frozenset[int], limit: int) -> None:
        self._silent = silent
        self._limit = limit
        self._run = 0

    def keeps(self, token: int) -> bool:
        self._run = self._run + 1 if token in self._silent else 0
        return self._run <= self._limit
