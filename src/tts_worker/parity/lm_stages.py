"""Language model stages: inputs and scores, free sampling, interleaved text, single draws, the silence filter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from tts_worker.engine.cosyvoice.chunks import Draw, Item, Kind
from tts_worker.engine.cosyvoice.compat import SILENT_TOKENS, Compat, SilenceFilter
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.engine.offline.pipeline import MAX_RATIO, MIN_RATIO, OfflinePipeline, TokenDecoder
from tts_worker.engine.offline.reference import nucleus, reference_draw
from tts_worker.errors import SynthesisFailed
from tts_worker.parity.compare import SCORES, Bench, Golden

EXACT = 1e-6  # copied rows


def label(item: Item) -> str:
    kind, i = item
    return f"{kind.value}{i}" if kind in (Kind.TEXT, Kind.SPEECH) else kind.value


def check_llm(bench: Bench, golden: Golden, networks: Networks) -> None:
    """Teacher forcing: the assembled input, then the scores given to the sampler at each step."""
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
            bench.equal(golden.name, name, value, meta[name])
    bench.close(golden, "lm_input", decoding.embed(items), EXACT)
    rows = []
    for step in range(len(golden["logp"])):
        scores = decoding.feed(items)
        if step < MIN_RATIO * len(text):
            scores[:, dims.speech_tokens] = -torch.inf
        rows.append(scores)
        if step < len(forced):
            items = [(Kind.SPEECH, forced[step])]
    bench.close(golden, "logp", torch.cat(rows), SCORES)


def check_free_run(bench: Bench, golden: Golden, networks: Networks) -> None:
    """Ids that the reference drew after ``torch.manual_seed``."""
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
        bench.ids(golden, key, got)


def check_bistream(bench: Bench, golden: Golden, networks: Networks, prompt_end: int | None) -> None:
    """Interleaved text: the order of everything, the scores, and where the reference gives up."""
    compat = Compat.reference()
    dims = networks.config.lm
    meta = golden.meta
    name = golden.name
    request = Request((), torch.zeros(0), golden.ids("prompt_text"), golden.ids("prompt_speech_token"))
    machine = OfflinePipeline(networks, compat).interleave(request, prompt_end)
    text = iter(golden.ids("text"))
    drawn = iter(golden.ids("sampler_ids"))
    decoding = TokenDecoder(networks, compat, 0, sum(len(e[1]) for e in meta["schedule"] if e[0] == "forward") + 64)
    schedule: list[list[Any]] = []
    scores = []
    inputs = []
    decoded = []
    emitted = []
    error = None
    pulled = 0
    count = 0
    past = 0
    while not machine.done:
        if machine.wants_text:
            token = next(text, None)
            pulled += token is not None
            machine.end() if token is None else machine.push(token)
            continue
        if pulled:
            schedule.append(["text_in", pulled])
            pulled = 0
        items, how = machine.feed()
        schedule.append(["forward", [label(item) for item in items], past, past + len(items)])
        past += len(items)
        if past > decoding._pool.max_tokens:
            break
        inputs.append(decoding.embed(items))
        row = decoding.feed(items)
        token = dims.fill_id
        if how is not Draw.FORCED_FILL:
            if how is Draw.MIDDLE:
                row[:, dims.speech_tokens] = -torch.inf
            scores.append(row)
            decoded.append(count)
            given = next(drawn, None)
            if given is None:
                break
            token = given
        count += 1
        try:
            sounds = machine.take(token)
        except SynthesisFailed as failure:
            error = failure.message
            break
        if sounds:
            schedule.append(["emit", token])
            emitted.append(token)
    bench.equal(name, "schedule", schedule, meta["schedule"])
    bench.equal(name, "ids all drawn", next(drawn, None), None)
    if error is None:
        bench.equal(name, "text all read", next(text, None), None)
    wrong = re.search(r"\d+", meta.get("error") or "")
    bench.equal(name, "error", error and re.findall(r"\d+", error)[0], wrong and wrong.group())
    for key, value in (("eos", dims.eos_id), ("fill", dims.fill_id)):
        if key in meta:
            bench.equal(name, key, value, meta[key])
    for key, ids in (("emitted", emitted), ("decoded_len_at_sample", decoded)):
        if key in golden:
            bench.ids(golden, key, ids)
    all_scores = torch.cat(scores)
    if "logp_first" in golden:
        bench.close(golden, "logp_first", all_scores[: len(golden["logp_first"])], SCORES)
    if "logp_last" in golden:
        bench.close(golden, "logp_last", all_scores[len(all_scores) - len(golden["logp_last"]) :], SCORES)
    if "top_val" in golden:
        values = golden["top_val"]
        bench.close(golden, "top_val", all_scores.topk(values.shape[1], dim=-1).values, SCORES)
        # Neighbours closer than the limit may change places, so ids are held by the score that we give them.
        bench.measure(name, "top_idx", all_scores.gather(1, golden["top_idx"]), values, SCORES)
    if "all_inputs" in golden:
        bench.close(golden, "all_inputs", torch.cat(inputs, dim=1), EXACT)


def check_sampling(bench: Bench, golden: Golden, networks: Networks) -> None:
    """Candidate sets and single draws."""
    rule = networks.config.sampling
    table = golden["logp"]
    for i in range(len(table)):
        if f"cand_idx_{i}" in golden:
            ids, probs = nucleus(table[i], rule)
            bench.ids(golden, f"cand_idx_{i}", ids.tolist())
            bench.close(golden, f"cand_prob_{i}", probs, EXACT)
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
    bench.equal(golden.name, f"{len(got)} draws", got, expected)


def check_silence(bench: Bench, path: Path, networks: Networks) -> None:
    """Which silent tokens are dropped before the flow."""
    given: dict[str, Any] = json.loads(path.read_text("utf-8"))
    silent = SILENT_TOKENS[networks.config.family]
    limit = Compat().silence_limit_tokens
    bench.equal(path.stem, "silent_tokens", sorted(silent), sorted(given["silent_tokens"]))
    bench.equal(path.stem, "max_silent", limit, given["max_silent"])
    for i, case in enumerate(given["cases"]):
        keep = SilenceFilter(silent, limit)
        bench.equal(path.stem, f"case {i}", [t for t in case["llm_tokens"] if keep.accepts(t)], case["kept"])
