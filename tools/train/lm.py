"""The language model's stage: text to codes, by cross entropy and, for a small model, guided attention.

A model of a few million weights finds the word that is being said slowly by itself. Two attention heads are therefore
taught to look at it; where they look is known, since the teacher's units know their word.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tools.train.batches import Batches
from tools.train.config import StageConfig
from tools.train.networks import language_model_pass
from tools.train.trainer import Stage
from tts_worker.engine.cosyvoice.networks.dims import LmDims
from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM

Ints = npt.NDArray[np.int64]

_PADDING, _TEXT, _SPEECH, _START, _TASK = range(5)
_IGNORED = -100
_NO_WORD = -1
_HELD_OUT_BATCH = 4  # times the batch of a step
_LEAST_RATIO = 3  # codes per text token of an interleaved sequence, as in the reference


@dataclass(frozen=True)
class LmItem:
    """A sentence.

    Attributes:
        text: Text ids.
        codes: Codes.
        text_words: Word that each text id ends in.
        code_words: Word that each code says, -1: not known.
    """

    text: Ints
    codes: Ints
    text_words: Ints
    code_words: Ints

    def __len__(self) -> int:
        return len(self.text) + len(self.codes) + 2

    def clause(self, words: int) -> LmItem:
        """The first words only."""
        text, codes = self.text_words < words, self.code_words < words
        return LmItem(self.text[text], self.codes[codes], self.text_words[text], self.code_words[codes])

    def joined(self, other: LmItem) -> LmItem:
        """This sentence and another one after it."""
        first = int(self.text_words[-1]) + 1
        code_words = np.where(other.code_words >= 0, other.code_words + first, _NO_WORD)
        return LmItem(
            np.concatenate([self.text, other.text]),
            np.concatenate([self.codes, other.codes]),
            np.concatenate([self.text_words, other.text_words + first]),
            np.concatenate([self.code_words, code_words]),
        )


@dataclass(frozen=True)
class LmBatch:
    """Sequences ``[B, T]``: what is fed, what is to be predicted, and the words of both for the guide."""

    kinds: Ints
    ids: Ints
    targets: Ints
    spoken_words: Ints
    text_words: Ints

    @classmethod
    def of(cls, sequences: Sequence[tuple[Ints, ...]]) -> LmBatch:
        longest = max(len(sequence[0]) for sequence in sequences)
        fields = []
        for i, padding in enumerate((_PADDING, 0, _IGNORED, _NO_WORD, _NO_WORD - 1)):
            rows = [
                np.pad(sequence[i], (0, longest - len(sequence[i])), constant_values=padding) for sequence in sequences
            ]
            fields.append(np.stack(rows))
        return cls(*fields)


def plain_sequence(item: LmItem, fed_codes: Ints, dims: LmDims) -> tuple[Ints, ...]:
    """Start, text, task, codes: one row of each field of ``LmBatch``."""
    text, codes = len(item.text), len(item.codes)
    kinds = np.array([_START, *[_TEXT] * text, _TASK, *[_SPEECH] * codes])
    ids = np.concatenate([[0], item.text, [0], fed_codes])
    targets = np.concatenate([np.full(text + 1, _IGNORED), item.codes, [dims.eos_id]])
    spoken = np.concatenate([np.full(text + 1, _NO_WORD), item.code_words, [_NO_WORD]])
    words = np.concatenate([[_NO_WORD - 1], item.text_words, np.full(codes + 1, _NO_WORD - 1)])
    return kinds, ids, targets, spoken, words


def interleaved_sequence(item: LmItem, fed_codes: Ints, dims: LmDims, mix: tuple[int, int]) -> tuple[Ints, ...]:
    """Groups of ``mix`` text ids and codes, each with a fill id; the rest behind the task, as in ``plain_sequence``."""
    text_group, code_group = mix
    kinds, ids, targets = [_START], [0], [_IGNORED]
    at = 0
    for at in range(0, len(item.text) - text_group + 1, text_group):
        codes = slice(at // text_group * code_group, (at // text_group + 1) * code_group)
        kinds += [_TEXT] * text_group + [_SPEECH] * code_group
        ids += [*item.text[at : at + text_group], *fed_codes[codes]]
        targets += [_IGNORED] * (text_group - 1) + [*item.codes[codes], dims.fill_id]
    groups = len(item.text) // text_group
    text, codes = item.text[groups * text_group :], slice(groups * code_group, None)
    kinds += [_TEXT] * len(text) + [_TASK] + [_SPEECH] * len(item.codes[codes])
    ids += [*text, 0, *fed_codes[codes]]
    targets += [_IGNORED] * len(text) + [*item.codes[codes], dims.eos_id]
    unknown = np.full(len(kinds), _NO_WORD)
    return np.array(kinds), np.array(ids), np.array(targets), unknown, unknown - 1


class LmStage(Stage):
    """Trains the language model on whole sentences.

    Options:
        guide: Weight of the guided attention; ``guided_layer`` and ``guided_heads`` say where.
        noise: Share of the codes that are fed wrongly.
        clauses: Share of the sentences with a comma that end there: streamed text is spoken clause by clause.
        joined: Share of the sentences that another one follows.
        interleaved: Share of the sentences in groups of text ids and codes.
    """

    def __init__(
        self,
        net: SpeechLM,
        settings: StageConfig,
        seed: int,
        items: Sequence[LmItem],
        *,
        held_out: int,
        comma_ids: frozenset[int],
        mix: tuple[int, int],
    ) -> None:
        super().__init__("lm", net, settings, seed)
        self.lm = net
        self._items = items[held_out:]
        self._held_out = Batches([len(item) for item in items[:held_out]], _HELD_OUT_BATCH * settings.batch)
        self._held_out_items = items[:held_out]
        self._batches = Batches([len(item) for item in self._items], settings.batch)
        self._comma_ids = comma_ids
        self._mix = mix
        self._guide = settings.option("guide", 0.0)
        self._guided_layer = int(settings.option("guided_layer", 1)) if self._guide else -1
        self._guided_heads = int(settings.option("guided_heads", 2))

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        rng = random.Random(self.seed * 1_000_000_007 + self.step)
        numbers = self._batches.at(self.step, self.seed)
        batch = LmBatch.of([self._sequence(self._items[number], rng) for number in numbers])
        entropy, accuracy, guide = self._scores(batch)
        loss = entropy + self._guide * guide
        return loss, {"entropy": entropy.detach(), "accuracy": accuracy.detach(), "guide": guide.detach()}

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        totals = torch.zeros(3)
        for numbers in self._held_out.all:
            items = [self._held_out_items[number] for number in numbers]
            batch = LmBatch.of([plain_sequence(item, item.codes, self.lm.dims) for item in items])
            totals += len(numbers) * torch.stack(self._scores(batch)).cpu()
        means = totals / len(self._held_out_items)
        return dict(zip(("entropy", "accuracy", "guide"), means.tolist(), strict=True))

    def _sequence(self, item: LmItem, rng: random.Random) -> tuple[Ints, ...]:
        option = self.settings.option
        commas = [i for i, token in enumerate(item.text[:-1]) if int(token) in self._comma_ids]
        if commas and rng.random() < option("clauses", 0.3) and int(item.code_words.min(initial=0)) >= 0:
            item = item.clause(int(item.text_words[rng.choice(commas)]) + 1)
        elif rng.random() < option("joined", 0.1):
            item = item.joined(self._items[rng.randrange(len(self._items))])
        codes = item.codes.copy()
        numbers = np.random.default_rng(rng.getrandbits(64))
        is_wrong = numbers.random(len(codes)) < option("noise", 0.0)
        codes[is_wrong] = codes[numbers.integers(0, max(1, len(codes)), int(is_wrong.sum()))]
        dims = self.lm.dims
        is_long = len(item.codes) > _LEAST_RATIO * len(item.text)
        if is_long and rng.random() < option("interleaved", 0.0):
            return interleaved_sequence(item, codes, dims, self._mix)
        return plain_sequence(item, codes, dims)

    def _scores(self, batch: LmBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Cross entropy, accuracy and the guide's loss."""
        net = self.lm
        hidden, attention = language_model_pass(net, embed(net, batch), self._guided_layer)
        targets = self._tensor(batch.targets)
        known = targets != _IGNORED
        scores, wanted = net.llm_decoder(hidden[known]), targets[known]
        entropy = F.cross_entropy(scores, wanted)
        accuracy = (scores.argmax(-1) == wanted).float().mean()
        guide = entropy.new_zeros(())
        if attention is not None:
            spoken, words = self._tensor(batch.spoken_words), self._tensor(batch.text_words)
            same = (spoken[:, :, None] == words[:, None]).to(attention)  # [B, T, T]
            looked = (attention[:, : self._guided_heads] * same[:, None]).sum(-1)  # [B, heads, T]
            exists = same.any(-1)[:, None].expand_as(looked)
            if bool(exists.any()):
                guide = -looked[exists].clamp(min=1e-6).log().mean()
        return entropy, accuracy, guide

    def _tensor(self, array: Ints) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def embed(net: SpeechLM, batch: LmBatch) -> Tensor:
    """Input vectors ``[B, T, D]``."""
    device = net.speech_embedding.weight.device
    places = {kind: np.nonzero(batch.kinds == kind) for kind in (_TEXT, _SPEECH, _START, _TASK)}
    row = np.zeros(batch.kinds.shape, np.int64)  # of ``vectors``; row 0 is padding
    used = 1
    for place in places.values():
        row[place] = np.arange(used, used + len(place[0]))
        used += len(place[0])
    text, speech = (torch.from_numpy(batch.ids[places[kind]]).to(device) for kind in (_TEXT, _SPEECH))
    vectors = torch.cat(
        [
            net.speech_embedding.weight.new_zeros(1, net.dims.hidden_size),
            net.embed_text(text),
            net.embed_speech(speech),
            net.embed_special(net.dims.sos_row).expand(len(places[_START][0]), -1),
            net.embed_special(net.dims.task_row).expand(len(places[_TASK][0]), -1),
        ]
    )
    return vectors[torch.from_numpy(row).to(device)]
