"""Language model stages: inputs and scores, free sampling, interleaved text, single draws, silence filter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.parity.compare import SCORES, CheckList, Golden
from tools.reference.algorithms import nucleus, reference_draw
from tools.reference.compat import Compat
from tools.reference.pipeline import OfflinePipeline, TokenDecoder
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.tokens.guard import SILENCE_LIMIT_TOKENS, SILENT_TOKENS, SilenceFilter
from tts_worker.engine.cosyvoice.tokens.interleave import Draw
from tts_worker.engine.cosyvoice.tokens.runs import MAX_RATIO, MIN_RATIO
from tts_worker.engine.cosyvoice.voices.speaker import Request
from tts_worker.errors import SynthesisFailed

EXACT = 1e-6  # copied rows


def label(item: Item) -> str:
    kind, i = item
    return {Kind.TEXT: f"T{i}", Kind.SPEECH: f"S{i}"}.get(kind, kind.name)


def check_llm(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare the assembled input and, with teacher forcing, the scores of each step."""
    dims = networks.config.lm
    meta = golden.meta
    text = golden.ids("text")
    forced = golden.ids("forced")
    items: list[Item] = [(Kind.SOS, 0), *((Kind.TEXT, i) for i in (*golden.ids("prompt_text"), *text))]
    items += [(Kind.TASK, 0), *((Kind.SPEECH, i) for i in golden.ids("prompt_speech_token"))]
    decoding = TokenDecoder(networks, Compat.reference(), 0, len(items) + len(forced) + 1)
    for name, value in (
        ("input_labels", [label(item) for item in items]),
        ("min_len", MIN_RATIO * len(text)),
        ("max_len", MAX_RATIO * len(text)),
        ("masked_index", dims.speech_tokens),
        ("eos", dims.eos_id),
    ):
        if name in meta:
            checks.equal(golden.name, name, value, meta[name])
    checks.close(golden, "lm_input", decoding.embed(items), EXACT)
    rows = []
    for step in range(len(golden["logp"])):
        scores = decoding.feed(items)
        if step < MIN_RATIO * len(text):
            scores[:, dims.speech_tokens] = -torch.inf
        rows.append(scores)
        if step < len(forced):
            items = [(Kind.SPEECH, forced[step])]
    checks.close(golden, "logp", torch.cat(rows), SCORES)


def check_free_run(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare ids drawn after ``torch.manual_seed``."""
    for key in golden:
        if not (found := re.fullmatch(r"(.*?)seed(\d+)", key)):
            continue
        prefix = found.group(1)
        seed = int(found.group(2))
        request = Request(
            golden.ids(f"{prefix}text"),
            torch.zeros(0),
            golden.ids(f"{prefix}prompt_text"),
            golden.ids(f"{prefix}prompt_speech_token"),
        )
        capacity = len(request.prompt_text) + len(request.lm_prompt) + (MAX_RATIO + 1) * len(request.text) + 2
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            got = list(TokenDecoder(networks, Compat.reference(), seed, capacity).decode(request))
        checks.ids(golden, key, got)


def check_bistream(checks: CheckList, golden: Golden, networks: Networks, prompt_end: int | None) -> None:
    """Compare interleaved decoding: the schedule, the scores, and the token at which the reference fails."""
    dims = networks.config.lm
    meta = golden.meta
    name = golden.name
    run = _BistreamRun(golden, networks, prompt_end)
    run.run()
    checks.equal(name, "schedule", run.schedule, meta["schedule"])
    checks.equal(name, "ids all drawn", next(run.sampler_ids, None), None)
    if run.error is None:
        checks.equal(name, "text all read", next(run.text_ids, None), None)
    expected_error = re.search(r"\d+", meta.get("error") or "")
    got_error = run.error and re.findall(r"\d+", run.error)[0]
    checks.equal(name, "error", got_error, expected_error and expected_error.group())
    for key, value in (("eos", dims.eos_id), ("fill", dims.fill_id)):
        if key in meta:
            checks.equal(name, key, value, meta[key])
    for key, ids in (("emitted", run.emitted), ("decoded_len_at_sample", run.sampled_at)):
        if key in golden:
            checks.ids(golden, key, ids)
    _check_bistream_scores(checks, golden, torch.cat(run.scores))
    if "all_inputs" in golden:
        checks.close(golden, "all_inputs", torch.cat(run.inputs, dim=1), EXACT)


class _BistreamRun:
    """Replays interleaved decoding with the token ids that the reference sampled.

    Attributes:
        text_ids: Text tokens not read yet.
        sampler_ids: Sampled ids not used yet.
        schedule: Text reads, forward passes and emitted tokens, in the format of the golden file.
        scores: Scores of every sampled step, ``[1, speech ids]`` each.
        inputs: Input embeddings of every forward pass.
        sampled_at: Number of decoded tokens at every sampled step.
        emitted: Emitted speech tokens.
        error: Message of the error at which decoding failed.
    """

    def __init__(self, golden: Golden, networks: Networks, prompt_end: int | None) -> None:
        compat = Compat.reference()
        request = Request((), torch.zeros(0), golden.ids("prompt_text"), golden.ids("prompt_speech_token"))
        capacity = sum(len(event[1]) for event in golden.meta["schedule"] if event[0] == "forward") + 64
        self._dims = networks.config.lm
        self._interleaver = OfflinePipeline(networks, compat).interleave(request, prompt_end)
        self._decoder = TokenDecoder(networks, compat, 0, capacity)
        self._read_count = 0
        self._decoded_count = 0
        self._past_tokens = 0
        self.text_ids = iter(golden.ids("text"))
        self.sampler_ids = iter(golden.ids("sampler_ids"))
        self.schedule: list[list[Any]] = []
        self.scores: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self.sampled_at: list[int] = []
        self.emitted: list[int] = []
        self.error: str | None = None

    def run(self) -> None:
        """Decode to the end, or to the point where the golden file ends."""
        while not self._interleaver.is_over:
            if self._interleaver.wants_text:
                self._read_text()
            elif not self._decode_token():
                return

    def _read_text(self) -> None:
        token = next(self.text_ids, None)
        if token is None:
            self._interleaver.end()
        else:
            self._read_count += 1
            self._interleaver.push(token)

    def _decode_token(self) -> bool:
        """Run one forward pass and take its token; False at the end of the golden file or at an error."""
        if self._read_count:
            self.schedule.append(["text_in", self._read_count])
            self._read_count = 0
        items, draw = self._interleaver.feed()
        end = self._past_tokens + len(items)
        self.schedule.append(["forward", [label(item) for item in items], self._past_tokens, end])
        self._past_tokens = end
        if end > self._decoder._pool.max_tokens:
            return False
        self.inputs.append(self._decoder.embed(items))
        token = self._next_token(self._decoder.feed(items), draw)
        if token is None:
            return False
        self._decoded_count += 1
        try:
            is_speech = self._interleaver.take(token)
        except SynthesisFailed as failure:
            self.error = failure.message
            return False
        if is_speech:
            self.schedule.append(["emit", token])
            self.emitted.append(token)
        return True

    def _next_token(self, scores: Tensor, draw: Draw) -> int | None:
        if draw is Draw.FORCED_FILL:
            return self._dims.fill_id
        if draw is Draw.MIDDLE:
            scores[:, self._dims.speech_tokens] = -torch.inf
        self.scores.append(scores)
        self.sampled_at.append(self._decoded_count)
        return next(self.sampler_ids, None)


def _check_bistream_scores(checks: CheckList, golden: Golden, all_scores: Tensor) -> None:
    if "logp_first" in golden:
        checks.close(golden, "logp_first", all_scores[: len(golden["logp_first"])], SCORES)
    if "logp_last" in golden:
        checks.close(golden, "logp_last", all_scores[len(all_scores) - len(golden["logp_last"]) :], SCORES)
    if "top_val" in golden:
        values = golden["top_val"]
        checks.close(golden, "top_val", all_scores.topk(values.shape[1], dim=-1).values, SCORES)
        # Scores closer than the limit may be ordered differently, so ids are compared by their scores here.
        checks.measure(golden.name, "top_idx", all_scores.cpu().gather(1, golden["top_idx"]), values, SCORES)


def check_sampling(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare nucleus candidates and single draws."""
    rule = networks.config.sampling
    table = golden["logp"]
    for i in range(len(table)):
        if f"cand_idx_{i}" in golden:
            ids, probs = nucleus(table[i], rule)
            checks.ids(golden, f"cand_idx_{i}", ids.tolist())
            checks.close(golden, f"cand_prob_{i}", probs, EXACT)
    got = []
    expected = []
    for case in golden.meta["cases"]:
        scores = table[case["logits"]]
        history = case["history"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case["seed"])
            drawn = reference_draw(scores, history, rule)
            torch.manual_seed(case["seed"])
            ids, probs = nucleus(scores, rule)
            first = int(ids[probs.multinomial(1, replacement=True)])
        repeated = history[-rule.window :].count(first) >= rule.repeats
        got.append([first, drawn, [first] if repeated else []])
        expected.append([case["nucleus"], case["ras"], case.get("masked_after", [])])
    checks.equal(golden.name, f"{len(got)} draws", got, expected)


def check_silence(checks: CheckList, path: Path, networks: Networks) -> None:
    """Compare which silent tokens are dropped before the flow."""
    goldens: dict[str, Any] = json.loads(path.read_text("utf-8"))
    silent = SILENT_TOKENS[networks.config.family]
    checks.equal(path.stem, "silent_tokens", sorted(silent), sorted(goldens["silent_tokens"]))
    checks.equal(path.stem, "max_silent", SILENCE_LIMIT_TOKENS, goldens["max_silent"])
    for i, case in enumerate(goldens["cases"]):
        silence_filter = SilenceFilter(silent)
        accepted = [token for token in case["llm_tokens"] if silence_filter.accepts(token)]
        checks.equal(path.stem, f"case {i}", accepted, case["kept"])
