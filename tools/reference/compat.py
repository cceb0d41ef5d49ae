"""Switches for behaviors of the reference implementation that change the audio.

The defaults give correct audio that streams consistently; ``Compat.reference()`` reproduces the reference's numbers.
Behaviors the weights were trained with are not switches and live where they are computed: the rotation of head 0 only
(networks/dit.py), the phase that is constant within a frame (networks/hift.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Compat:
    """A field that is True follows the reference."""

    torch_draws: bool = False
    """Sample with torch's default generator, call for call, instead of a hash of (seed, step)."""
    eos_masked_by_wrong_id: bool = False
    """CosyVoice3 masks the start id instead of the end id: there is no minimum length, and interleaved text can end in
    the middle. Other stop ids can also be sampled and end the audio or fail."""
    full_mask_in_last_chunk: bool = False
    """Compute the last chunk under full attention, so that it does not continue the emitted audio."""
    loud_cross_fade: bool = False
    """CosyVoice2: restart the phase in every chunk and cross-fade with a window that adds up to 1.08 (+0.67 dB)."""
    float32_phase: bool = False
    """Accumulate the phase of the harmonics in float32, which loses precision over time."""
    hop_shared_by_requests: bool = False
    """Start each request with the chunk size the previous one ended with."""
    growing_hop: bool = False
    """Compute chunks of 25, 50, 100, 100... tokens, the first plus what completes the prompt's last chunk."""
    token_fed_twice: bool = False
    """Interleaved text: feed the last input twice when the text ends right after a fill id."""
    speaks_before_text: bool = False
    """Interleaved text, CosyVoice3 without prompt speech: decode from the instruction alone."""
    unread_prompt_dropped: bool = False
    """Interleaved text too short for the prompt's speech: drop the rest of the prompt instead of appending it."""
    endless_interleave: bool = False
    """Interleaved text: no length limit."""
    instruct_ignored_by_saved_voice: bool = False
    """instruct2 with a saved voice: use the voice's own prompt text, not the instruction."""
    vc_prompt_uncut: bool = False
    """Voice conversion: do not trim the prompt's mel to two frames per token (can add one frame to the output)."""
    prompt_tag_demanded: bool = False
    """CosyVoice3: fail without <|endofprompt|> in the text instead of adding it."""

    @classmethod
    def reference(cls) -> Compat:
        """All switches on: reproduces the reference's numbers."""
        return replace(cls(), **{f.name: True for f in fields(cls) if f.type == "bool"})
