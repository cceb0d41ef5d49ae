"""A training of the smallest sizes, with invented data instead of a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tools.train import speech_data
from tools.train.codes import CodeBook
from tools.train.config import Config, DataConfig, Round, SizeConfig, StageConfig
from tools.train.speech_data import AudioData, PartData, UnitData
from tools.train.teacher import HALF_SAMPLES, PART_BINS, PART_HOP_SAMPLES, RATE_HZ

UNITS = (" ", ".", "a", "b", "o", "t")
WORDS = ("at", "bat", "boat", "tab", "to", "oat")
SENTENCES = 24
HELD_OUT = 4
SIZES = SizeConfig(
    text_vocab=270, lm=(32, 2, 2, 1, 48), encoder=(32, 2, 48, 1), unet=(16, 2, 8, 1, 1), vocoder=16, pitch=8
)


def tiny_config(**stages: StageConfig) -> Config:
    """A configuration; the stages' batches are small."""
    lm = StageConfig(lr=3e-3, warmup_steps=2, batch=200, options={"guide": 0.5, "guided_layer": 1, "noise": 0.1})
    flow = StageConfig(lr=2e-3, warmup_steps=2, batch=120, options={"encoder_steps": 4, "sharp": 0.2, "sharp_from": 8})
    vocoder = StageConfig(
        lr=1e-3, warmup_steps=2, clip=5.0, batch=2, options={"frames": 10, "discriminator_from": 2, "channels": 2}
    )
    return Config(
        "tiny",
        data=DataConfig(pitch_buckets=2, codes=64, held_out_lines=HELD_OUT, lexicon=False),
        sizes=SIZES,
        stages={"lm": lm, "flow": flow, "vocoder": vocoder, **stages},
        plan=(
            Round("flow", until_step=2),
            Round("render", until_step=3),
            Round("lm", until_step=2),
            Round("vocoder", until_step=2),
        ),
    )


def filter_config() -> Config:
    """``tiny_config`` with a vocoder that filters its excitation."""
    vocoder = StageConfig(lr=2e-3, warmup_steps=2, clip=5.0, batch=2, options={"frames": 20, "bfloat16": 1})
    sizes = replace(SIZES, source_filter=True, vocoder_kernels=(3,), vocoder_dilations=((1, 2),))
    return replace(tiny_config(vocoder=vocoder), sizes=sizes)


def write_data(run: Path, config: Config) -> None:
    """Write what ``speech_data.prepare`` makes: each letter of a text lasts two tokens, its pitch is its tone."""
    rng = np.random.default_rng(3)
    texts = tuple(" ".join(rng.choice(WORDS, rng.integers(2, 5))).capitalize() + "." for _ in range(SENTENCES))
    halves, places = [], []
    for text in texts:
        letters = [UNITS.index(letter) for letter in text.lower()]
        halves.append(np.repeat(letters, 4))
        places.append(np.repeat(np.arange(len(text)), 2))
    tones_hz: Mapping[int, float] = {2: 180.0, 3: 0.0, 4: 120.0}
    pitch = np.array([tones_hz.get(int(unit), 0.0) for unit in np.concatenate(halves)], np.float32)
    tokens = np.array([len(sentence) // 2 for sentence in halves])
    units = UnitData(texts, texts, UNITS, tokens, np.concatenate(halves), pitch, np.concatenate(places))
    units.save(run / speech_data.UNITS)
    (run / speech_data.CORPUS).write_text("\n".join(texts), "utf-8")
    book = CodeBook.train(UNITS, units.halves, units.pitch_hz, config.data.pitch_buckets, config.data.codes)
    book.save(run / speech_data.CODES)
    phase = np.cumsum(np.repeat(pitch, HALF_SAMPLES)) / RATE_HZ * 2 * np.pi
    wave = 0.3 * np.sin(phase) + 0.01 * rng.standard_normal(len(phase))
    samples = tokens * 2 * HALF_SAMPLES
    AudioData(samples, (wave * 32767).astype(np.int16), pitch).save(run / speech_data.AUDIO)
    if config.sizes.source_filter:
        noise = (0.01 * rng.standard_normal(len(phase)) * 32767).astype(np.int16)
        columns = int((samples // PART_HOP_SAMPLES + 1).sum())
        PartData(noise, np.full((columns, PART_BINS), np.log(0.03), np.float16)).save(run / speech_data.PARTS)
