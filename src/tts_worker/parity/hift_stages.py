"""Vocoder stages: pitch, excitation, decoding, and the whole of it with silent, seeded or given noise."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.hift import Hift, Noise
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.offline.reference import BufferedNoise, DefaultGeneratorNoise, NaturalNoise
from tts_worker.parity.compare import DECODE, FEATURES, PITCH_HZ, SHORT_WAVE, Bench, Golden


def seed_of(meta: dict[str, Any]) -> int:
    """The seed that a golden file says it was made with."""
    found = re.search(r"manual_seed\((\d+)\)", json.dumps(meta))
    return int(meta["seed"]) if "seed" in meta else int(found.group(1)) if found else 0


def noise_named(name: str, harmonics: int, samples: int) -> Noise:
    """``zero``, ``seeded`` (torch's generator as it stands) or ``noise<seed>`` (a uniform buffer drawn with it)."""
    if found := re.search(r"noise(\d+)", name):
        generator = torch.Generator().manual_seed(int(found.group(1)))
        return BufferedNoise(torch.rand(1, samples, harmonics, generator=generator)[0])
    return DefaultGeneratorNoise() if "seeded" in name else BufferedNoise(torch.zeros(0, harmonics))


def seeded_run(seed: int, hift: Hift, mel: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sound, source = hift(mel, noise)
        return sound, source


def check_hift(bench: Bench, golden: Golden, networks: Networks) -> None:
    hift = networks.hift
    dims = networks.config.hift
    mel = golden["mel"]
    harmonics = dims.nb_harmonics + 1
    samples = mel.shape[2] * dims.frame_samples
    seed = seed_of(golden.meta)
    silence = BufferedNoise(torch.zeros(0, harmonics))
    first = hift.start(1).phase
    start = torch.zeros(1, dtype=torch.long)
    pitch_key = next(key for key in ("f0", "f0_final1") if key in golden)
    pitch = golden[pitch_key]
    for key in golden:
        final = not key.endswith("_final0")
        ahead = hift.f0_predictor.ahead
        if key in ("f0", "f0_final0", "f0_final1"):
            bench.close(golden, key, hift.f0_predictor(mel, final), PITCH_HZ, "Hz")
        elif key == "uv":
            bench.close(golden, key, (pitch > dims.nsf_voiced_threshold).float()[:, :, None], 0.0)
        elif key == "sine_waves_zero_noise":
            voiced = (pitch > dims.nsf_voiced_threshold).float().repeat_interleave(dims.frame_samples, 1)[:, :, None]
            bench.close(golden, key, hift.m_source.harmonics(pitch, first) * dims.nsf_alpha * voiced, SHORT_WAVE)
        elif key == "source_zero_noise":
            bench.close(golden, key, hift.m_source(pitch, first, silence(start, samples, harmonics)), SHORT_WAVE)
        elif key == "decode_source_stft":
            bench.close(golden, key, hift.fourier.analyse(golden["decode_source"]), FEATURES)
        elif key in ("decode", "decode_final0", "decode_final1"):
            cut = 0 if final else ahead
            source = golden["decode_source"][:, :, : samples - cut * dims.frame_samples]
            bench.close(golden, key, hift.decode(mel[:, :, : mel.shape[2] - cut], source, final), DECODE)
        elif key == "seeded_gauss":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                bench.close(golden, key, DefaultGeneratorNoise()(start, samples, harmonics), 0.0)
        elif key in ("wav_zero_noise_cache_source", "src_with_cache"):
            source = hift(mel, silence)[1].clone()
            source[:, :, : golden["cache_source"].shape[2]] = golden["cache_source"]
            got = source if key == "src_with_cache" else hift.decode(mel, source)
            bench.measure(golden.name, key, got, golden[key], SHORT_WAVE)
        elif found := re.fullmatch(r"(wav|src)_(.*)", key):
            noise = noise_named(found.group(2), harmonics, samples)
            if final:
                sound, source = seeded_run(seed, hift, mel, noise)
            else:
                sound, _ = hift.stream(mel, hift.start(1), noise, False)
                settled = mel.shape[2] - ahead
                pitch_now = hift.f0_predictor(mel, False)
                source = hift.m_source(pitch_now, first, noise(start, settled * dims.frame_samples, harmonics))
            if found.group(1) == "wav":
                bench.wave(golden, key, sound)
            else:
                bench.close(golden, key, source, SHORT_WAVE)
    natural = golden.meta.get("natural")
    if isinstance(natural, dict) and "sine_first" in natural:
        given = torch.tensor(natural["sine_first"])
        got = NaturalNoise(networks.config.flow, dims)(start, len(given), harmonics)[0]
        note = "identical" if torch.equal(got, given) else "another order of building"
        bench.info(golden.name, "natural noise", note)
