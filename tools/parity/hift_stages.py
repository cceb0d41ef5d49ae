"""Vocoder stages: F0, excitation, decoding, and the complete vocoder with zero, seeded or given noise."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
from torch import Tensor

from tools.parity.compare import DECODE, FEATURES, PITCH_HZ, SHORT_WAVE, CheckList, Golden
from tools.reference.algorithms import BufferedNoise, DefaultGeneratorNoise, NaturalNoise
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.hift import Hift, Noise


def seed_of(meta: dict[str, Any]) -> int:
    """The seed recorded in a golden file's header."""
    found = re.search(r"manual_seed\((\d+)\)", json.dumps(meta))
    return int(meta["seed"]) if "seed" in meta else int(found.group(1)) if found else 0


def noise_named(name: str, harmonics: int, samples: int) -> Noise:
    """Noise by name: ``zero``, ``seeded`` (torch's default generator) or ``noise<seed>`` (a seeded uniform buffer)."""
    if found := re.search(r"noise(\d+)", name):
        generator = torch.Generator().manual_seed(int(found.group(1)))
        return BufferedNoise(torch.rand(1, samples, harmonics, generator=generator)[0])
    return DefaultGeneratorNoise() if "seeded" in name else BufferedNoise(torch.zeros(0, harmonics))


def seeded_run(seed: int, hift: Hift, mel: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Waveform and source of the vocoder, with torch's default generator seeded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        samples, source = hift(mel, noise)
        return samples, source


def check_hift(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare every stage of the vocoder."""
    stage = _HiftStage(checks, golden, networks)
    for key in golden:
        stage.check(key)
    natural = golden.meta.get("natural")
    if isinstance(natural, dict) and "sine_first" in natural:
        expected = torch.tensor(natural["sine_first"])
        noise = NaturalNoise(networks.config.chunked_flow, networks.config.hift)
        got = noise(stage.start, len(expected), stage.harmonics)[0]
        note = "identical" if torch.equal(got, expected) else "the modules were constructed in another order"
        checks.info(golden.name, "natural noise", note)


class _HiftStage:
    """Compares the tensors of one golden file, by their keys."""

    def __init__(self, checks: CheckList, golden: Golden, networks: Networks) -> None:
        self._checks = checks
        self._golden = golden
        self._hift = networks.hift
        self._dims = networks.config.hift
        self._mel = golden["mel"]
        self._samples = self._mel.shape[2] * self._dims.frame_samples
        self._seed = seed_of(golden.meta)
        self.harmonics = self._dims.nb_harmonics + 1
        self.start = torch.zeros(1, dtype=torch.long, device=self._mel.device)
        self._zero_noise = BufferedNoise(torch.zeros(0, self.harmonics))
        self._phase = networks.hift.start(1, self._mel.device).phase
        self._f0 = golden[next(key for key in ("f0", "f0_final1") if key in golden)]

    def check(self, key: str) -> None:
        golden = self._golden
        close = self._checks.close
        hift = self._hift
        match key:
            case "f0" | "f0_final0" | "f0_final1":
                close(golden, key, hift.f0_predictor(self._mel, _is_final(key)), PITCH_HZ, "Hz")
            case "uv":
                close(golden, key, self._voiced(), 0.0)
            case "sine_waves_zero_noise":
                voiced = self._voiced().repeat_interleave(self._dims.frame_samples, 1)
                close(
                    golden,
                    key,
                    hift.m_source.harmonics(self._f0, self._phase) * self._dims.nsf_alpha * voiced,
                    SHORT_WAVE,
                )
            case "source_zero_noise":
                noise = self._zero_noise(self.start, self._samples, self.harmonics).to(self._mel)
                close(golden, key, hift.m_source(self._f0, self._phase, noise), SHORT_WAVE)
            case "decode_source_stft":
                close(golden, key, hift.fourier.analyze(golden["decode_source"]), FEATURES)
            case "decode" | "decode_final0" | "decode_final1":
                close(golden, key, self._decode(_is_final(key)), DECODE)
            case "seeded_gauss":
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self._seed)
                    close(golden, key, DefaultGeneratorNoise()(self.start, self._samples, self.harmonics), 0.0)
            case "wav_zero_noise_cache_source" | "src_with_cache":
                self._check_cached_source(key)
            case _:
                self._check_named_noise(key)

    def _voiced(self) -> Tensor:
        """1.0 for voiced frames, ``[1, T, 1]``."""
        return (self._f0 > self._dims.nsf_voiced_threshold).float()[:, :, None]

    def _decode(self, final: bool) -> Tensor:
        frames = self._mel.shape[2] - (0 if final else self._hift.f0_predictor.ahead)
        source = self._golden["decode_source"][:, :, : frames * self._dims.frame_samples]
        return self._hift.decode(self._mel[:, :, :frames], source, final)

    def _check_cached_source(self, key: str) -> None:
        golden = self._golden
        source = self._hift(self._mel, self._zero_noise)[1].clone()
        source[:, :, : golden["cache_source"].shape[2]] = golden["cache_source"]
        got = source if key == "src_with_cache" else self._hift.decode(self._mel, source)
        self._checks.measure(golden.name, key, got, golden[key], SHORT_WAVE)

    def _check_named_noise(self, key: str) -> None:
        """Compare ``wav_<noise>`` and ``src_<noise>``; other keys belong to no stage."""
        found = re.fullmatch(r"(wav|src)_(.*)", key)
        if found is None:
            return
        hift = self._hift
        noise = noise_named(found.group(2), self.harmonics, self._samples)
        if _is_final(key):
            samples, source = seeded_run(self._seed, hift, self._mel, noise)
        else:
            samples, _ = hift.stream(self._mel, hift.start(1, self._mel.device), noise, False)
            settled_frames = self._mel.shape[2] - hift.f0_predictor.ahead
            f0 = hift.f0_predictor(self._mel, False)
            settled_noise = noise(self.start, settled_frames * self._dims.frame_samples, self.harmonics)
            source = hift.m_source(f0, self._phase, settled_noise.to(self._mel))
        if found.group(1) == "wav":
            self._checks.wave(self._golden, key, samples)
        else:
            self._checks.close(self._golden, key, source, SHORT_WAVE)


def _is_final(key: str) -> bool:
    return not key.endswith("_final0")
