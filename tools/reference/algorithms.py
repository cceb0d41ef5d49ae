"""The reference's algorithms where they differ from the engine's: sampling, noise, chunk sizes, cross-fade, prompts.

One utterance at a time, with torch's default CPU generator where the reference uses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.reference.compat import Compat
from tts_worker.audio.decode import Recording
from tts_worker.engine.cosyvoice.audio.chunks import Chunk, next_chunk
from tts_worker.engine.cosyvoice.bundle.config import V1, V3
from tts_worker.engine.cosyvoice.networks.dims import FlowDims, HiftDims
from tts_worker.engine.cosyvoice.networks.flow import NOISE_FRAMES
from tts_worker.engine.cosyvoice.networks.hift import HELD_FRAMES, F0Predictor, Hift, Noise
from tts_worker.engine.cosyvoice.ops.sampler import SampleRule
from tts_worker.engine.cosyvoice.tokens.interleave import Interleave, InterleavePhase, InterleaveRule
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFeatures, PromptFrontend
from tts_worker.engine.cosyvoice.voices.speaker import Mode, Request, Speaker
from tts_worker.errors import InvalidRequest
from tts_worker.front_end.instruction import END_OF_PROMPT

# The hop doubles from the first to the maximum, independently of the trained chunk size.
FIRST_HOP_TOKENS = 25
MAX_HOP_TOKENS = 100
V1_HELD_FRAMES = 20  # of CosyVoice-300M's vocoder


def nucleus(scores: Tensor, rule: SampleRule) -> tuple[Tensor, Tensor]:
    """The reference's nucleus of ``scores [V]``: ids and probabilities, most likely first."""
    probs, ids = scores.softmax(dim=0).sort(descending=True, stable=True)
    probs = probs[: rule.top_k]
    ids = ids[: rule.top_k]
    before = np.cumsum(probs.numpy(), dtype=np.float32)  # sequential float32 sum, as in the reference
    keep = 1 + int((before[:-1] < np.float32(rule.top_p)).sum())
    return ids[:keep], probs[:keep]


def reference_draw(scores: Tensor, history: Sequence[int], rule: SampleRule) -> int:
    """Sample one id from ``scores [V]`` with the reference's calls to torch's default CPU generator."""
    ids, probs = nucleus(scores, rule)
    chosen = int(ids[probs.multinomial(1, replacement=True)])
    if list(history[-rule.window :]).count(chosen) >= rule.window * rule.tau:
        scores = scores.clone()
        scores[chosen] = -torch.inf
        chosen = int(scores.softmax(dim=0).multinomial(1, replacement=True))
    return chosen


class BufferedNoise:
    """Noise from a buffer ``[samples, harmonics]``; zeros beyond its end."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer

    def __call__(self, start: Tensor, samples: int, harmonics: int) -> Tensor:
        return torch.stack([F.pad(self._buffer[s:], (0, 0, 0, samples))[:samples] for s in start.tolist()])


class DefaultGeneratorNoise:
    """The reference's noise for CosyVoice2: drawn per call from torch's default CPU generator, in its layout."""

    def __call__(self, start: Tensor, samples: int, harmonics: int) -> Tensor:
        torch.rand(1, harmonics)  # an unused phase that advances the generator
        noise = torch.empty(1, harmonics, samples).transpose(1, 2).normal_()
        torch.randn(1, samples, 1)  # unused as well
        return noise


class V1Draws:
    """The reference's draws for CosyVoice-300M, per part, from torch's default CPU generator. A ``Noise``."""

    def state(self, frames: int, mel: int) -> Tensor:
        """Initial state of the flow's solver, ``[1, frames, mel]``."""
        return torch.randn(1, mel, frames).transpose(1, 2)

    def phase(self, harmonics: int) -> Tensor:
        """Phases of the harmonics before the first sample, ``[1, harmonics]`` float64, in cycles."""
        phase = torch.rand(1, harmonics, 1)[:, :, 0].double() - 0.5
        phase[:, 0] = 0
        return phase

    def __call__(self, start: Tensor, samples: int, harmonics: int) -> Tensor:
        noise = torch.randn(1, harmonics, samples).transpose(1, 2)
        torch.randn(1, samples, 1)  # not used
        return noise


class NaturalNoise:
    """The reference's noise for CosyVoice3.

    It is torch's random stream with seed 0 after the draws for the flow's initial noise, the first flow layers and the
    pitch predictor. The buffer grows on demand.
    """

    def __init__(self, flow: FlowDims, hift: HiftDims) -> None:
        self._flow = flow
        self._hift = hift
        self._buffer = torch.zeros(0, hift.nb_harmonics + 1)

    def __call__(self, start: Tensor, samples: int, harmonics: int) -> Tensor:
        needed = int(start.max()) + samples
        if needed > len(self._buffer):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                torch.randn(1, self._flow.mel, NOISE_FRAMES)
                nn.Embedding(self._flow.vocab, self._flow.input_size)
                nn.Linear(self._flow.spk_embed, self._flow.mel)
                F0Predictor(self._hift)
                torch.rand(1, harmonics)
                self._buffer = torch.rand(max(needed, 2 * len(self._buffer), 4096), harmonics)
        return BufferedNoise(self._buffer)(start, samples, harmonics)


@dataclass
class Hop:
    """The reference's growing chunk size; never shrinks, also across requests that share it."""

    tokens: int = FIRST_HOP_TOKENS

    def grow(self) -> None:
        self.tokens = min(MAX_HOP_TOKENS, 2 * self.tokens)


class ReferencePlan:
    """The reference's chunks of one utterance."""

    def __init__(self, prompt_tokens: int, hop: Hop, ahead: int) -> None:
        self._hop = hop
        self._ahead = ahead
        self._pad = -prompt_tokens % hop.tokens

    def next(self, done: int, available: int, ended: bool) -> Chunk | None:
        """Return the chunk after ``done`` rendered tokens; the one after it is larger."""
        hop = self._hop.tokens + (self._pad if done == 0 else 0)
        chunk = next_chunk(done, available, ended, hop, self._ahead)
        if chunk is not None and not chunk.final:
            self._hop.grow()
        return chunk


@dataclass
class FadeState:
    """The reference's state between chunks: the held frames, their excitation and their audio. Not for CosyVoice3."""

    mel: Tensor  # [1, mel, held]
    source: Tensor  # [1, 1, held*frame]
    audio: Tensor  # [1, held*frame]


@torch.inference_mode()
def reference_fade(
    hift: Hift, mel: Tensor, state: FadeState | None, noise: Noise, final: bool, phase: Tensor | None = None
) -> tuple[Tensor, FadeState | None]:
    """Vocode one chunk of CosyVoice2 or CosyVoice-300M like the reference.

    Repeats the held frames with their previous excitation, restarts the phase after them and cross-fades with weights
    that add up to 1.08. ``phase [1, H]`` replaces the phase before the chunk.
    """
    held = V1_HELD_FRAMES if hift.dims.has_sample_phase else HELD_FRAMES
    n = held * hift.dims.frame_samples
    if state is not None:
        mel = torch.cat([state.mel, mel], dim=2)
    f0 = hift.f0_predictor(mel)
    begin = hift.start(1, mel.device)
    source_noise = noise(begin.start, f0.shape[1] * hift.dims.frame_samples, hift.dims.nb_harmonics + 1)
    source = hift.m_source(f0, begin.phase if phase is None else phase, source_noise.to(mel))
    if state is not None:
        source[:, :, :n] = state.source
    audio = hift.decode(mel, source)
    if state is not None:
        window = torch.hamming_window(2 * n, periodic=False, dtype=torch.float64, device=mel.device)
        audio[:, :n] = (audio[:, :n] * window[:n] + state.audio * window[n:]).float()
    if final:
        return audio, None
    return audio[:, :-n], FadeState(mel[:, :, -held:], source[:, :, -n:], audio[:, -n:])


class ReferenceInterleave(Interleave):
    """Feeds interleaved text as the reference does, where ``compat`` says so."""

    def __init__(
        self,
        rule: InterleaveRule,
        prefix: Sequence[int],
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
        compat: Compat,
    ) -> None:
        super().__init__(rule, prefix, prompt_text, prompt_speech)
        self._compat = compat
        if compat.speaks_before_text and prefix:
            self.phase = InterleavePhase.PROMPT

    def end(self) -> None:
        if self._compat.token_fed_twice and self.phase is InterleavePhase.FILLED:
            self.phase = InterleavePhase.GROUP  # so that the last input stays pending
        if self._compat.unread_prompt_dropped:
            self._prompt = []
        super().end()

    @property
    def _is_at_limit(self) -> bool:
        return not self._compat.endless_interleave and super()._is_at_limit


class SincResampler:
    """Windowed-sinc polyphase resampling with torchaudio's defaults: Hann window, 6 zero crossings, roll-off 0.99.

    Theory: https://ccrma.stanford.edu/~jos/resample/
    """

    def __init__(self, source_hz: int, target_hz: int, crossings: int = 6, rolloff: float = 0.99) -> None:
        common = math.gcd(source_hz, target_hz)
        self.source = source_hz // common
        self.target = target_hz // common
        cutoff = min(self.source, self.target) * rolloff
        self.width = math.ceil(crossings * self.source / cutoff)
        offsets = torch.arange(-self.width, self.width + self.source, dtype=torch.float64) / self.source
        phases = torch.arange(0, -self.target, -1)[:, None] / self.target  # float32, as in torchaudio
        t = ((phases + offsets) * cutoff).clamp(-crossings, crossings)  # [target, taps]
        window = torch.cos(t * math.pi / crossings / 2) ** 2
        t = t * math.pi
        kernel = torch.where(t == 0, torch.ones((), dtype=t.dtype), t.sin() / t) * window * (cutoff / self.source)
        self.kernel = kernel.float()[:, None]  # [target, 1, taps]

    def __call__(self, audio: Tensor) -> Tensor:
        """``[1, n] -> [1, ceil(n * target / source)]``."""
        if self.source == self.target:
            return audio
        samples = audio.shape[1]
        padded = F.pad(audio, (self.width, self.width + self.source))
        out = F.conv1d(padded[:, None], self.kernel, stride=self.source)  # [1, target, m]
        # float32 as in torchaudio, whose rounding determines the length
        length = int(torch.ceil(torch.as_tensor(self.target * samples / self.source)))
        return out.transpose(1, 2).reshape(1, -1)[:, :length]


class ReferenceFrontend(PromptFrontend):
    """Prompt features as the reference computes them: resampled with a windowed sinc."""

    def _resample(self, samples: Tensor, from_hz: int, to_hz: int) -> Tensor:
        return SincResampler(from_hz, to_hz)(samples)

    def untrimmed_prompt(self, recording: Recording) -> PromptFeatures:
        """Features of a prompt for voice conversion, where mel and tokens may differ in duration."""
        return PromptFeatures(self.tokens(recording), self.mel(recording), self.embedding(recording))


def reference_request(
    speaker: Speaker, text: str, *, mode: Mode | None, instruction: str, allow_special: bool, compat: Compat
) -> Request:
    """Build the request for ``text`` with the prompt text that the reference uses.

    Raises:
        InvalidRequest: The voice does not support the mode, or ``text`` lacks a tag that the reference demands.
    """
    request = speaker.request(text, mode=mode, instruction=instruction, allow_special=allow_special)
    mode = mode or (Mode.INSTRUCT if instruction else speaker.mode)
    if speaker.config.family == V1:
        # Instructions leave the prompt out.
        is_instruct = mode is Mode.INSTRUCT
        return replace(request, flow_prompt=(), prompt_mel=request.prompt_mel[:0]) if is_instruct else request
    transcript = tuple(speaker.voice.prompt_text_ids.tolist())
    if mode is Mode.INSTRUCT and transcript and compat.instruct_ignored_by_saved_voice:
        return replace(request, prompt_text=transcript)
    if mode in (Mode.CROSS_LINGUAL, Mode.SFT) and speaker.config.family == V3 and compat.prompt_tag_demanded:
        if speaker.tokenizer.end_of_prompt_id not in request.text:
            raise InvalidRequest(f"CosyVoice3's reference requires {END_OF_PROMPT} in the text, as a special token")
        return replace(request, prompt_text=())
    return request
