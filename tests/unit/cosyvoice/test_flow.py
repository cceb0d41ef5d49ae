"""The flow: streaming equals offline, a batch equals its members, and what is held is given back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.cosyvoice.bundles import fullsize
from tests.unit.cosyvoice.networks import FAMILIES, apart, full_config, ids, networks, noise
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool, FlowState
from tts_worker.engine.cosyvoice.networks.blocks import CausalConv, Sites, mish
from tts_worker.engine.cosyvoice.networks.dit import Gelu
from tts_worker.engine.cosyvoice.networks.flow import NOISE_FRAMES, Flow, initial_noise, solver_times
from tts_worker.engine.cosyvoice.networks.kv_cache import NoPast
from tts_worker.errors import OutOfMemory

CHUNK = 25
AHEAD = 3
RATIO = 2
MEL = 80
LIMIT = 5e-5

families = pytest.mark.parametrize("family", FAMILIES)


class Speech:
    """Tokens, prompt mel and speaker of one made-up utterance."""

    def __init__(self, family: str, tokens: int, prompt: int, seed: int) -> None:
        self.flow = networks(family).flow
        self.tokens = ids(tokens, self.flow.dims.vocab, seed)
        self.prompt = noise(1, RATIO * min(prompt, tokens), MEL, seed=seed)
        self.spk = self.flow.speaker(noise(1, self.flow.dims.spk_embed, seed=seed))
        self.count = tokens

    def offline(self, *, chunked: bool = True, final: bool = True) -> Tensor:
        lengths = torch.tensor([self.count])
        frames = torch.tensor([self.prompt.shape[1]])
        return self.flow.mel(self.tokens, lengths, self.prompt, frames, self.spk, chunked=chunked, final=final)

    def piece(self, start: int) -> tuple[Tensor, int, Tensor]:
        """What ``advance`` takes of it at token ``start``: tokens, how many of them exist, prompt mel."""
        tokens = self.tokens[:, start : start + CHUNK + AHEAD]
        cond = self.prompt[:, RATIO * start : RATIO * (start + CHUNK)]
        missing = CHUNK + AHEAD - tokens.shape[1]
        return F.pad(tokens, (0, missing)), tokens.shape[1], F.pad(cond, (0, 0, 0, RATIO * CHUNK - cond.shape[1]))


def pool_of(family: str, *, slots: int = 4, pages: int = 24, max_chunks: int = 8) -> FlowPool:
    return FlowPool(networks(family).flow, slots=slots, pages=pages, max_chunks=max_chunks, checked=True)


def advance(pool: FlowPool, states: list[FlowState], speeches: list[Speech]) -> list[Tensor]:
    """One chunk of each; the frames that exist."""
    pieces = [speech.piece(state.tokens) for state, speech in zip(states, speeches, strict=True)]
    known = [piece[1] for piece in pieces]
    mel = pool.advance(
        states,
        torch.cat([piece[0] for piece in pieces]),
        known,
        torch.cat([speech.spk for speech in speeches]),
        torch.cat([piece[2] for piece in pieces]),
    )
    return [mel[row : row + 1, : RATIO * min(count, CHUNK)] for row, count in enumerate(known)]


@families
def test_keys_and_shapes_are_the_official_ones(family: str) -> None:
    with torch.device("meta"):
        flow = Flow(full_config(family).flow)
    assert {key: list(value.shape) for key, value in flow.state_dict().items()} == fullsize()[f"{family}/flow"]


@settings(deadline=None, max_examples=6)
@given(
    family=st.sampled_from(FAMILIES),
    shapes=st.lists(st.tuples(st.integers(1, 110), st.integers(0, 60), st.integers(0, 2)), min_size=1, max_size=3),
)
def test_streaming_equals_offline_for_staggered_sessions(family: str, shapes: list[tuple[int, int, int]]) -> None:
    pool = pool_of(family)
    speeches = [Speech(family, tokens, prompt, seed) for seed, (tokens, prompt, _) in enumerate(shapes)]
    states = [pool.open() for _ in speeches]
    heard: list[list[Tensor]] = [[] for _ in speeches]
    for turn in range(8):
        now = [i for i, s in enumerate(speeches) if turn >= shapes[i][2] and states[i].tokens < s.count]
        if now:
            for i, mel in zip(now, advance(pool, [states[i] for i in now], [speeches[i] for i in now]), strict=True):
                heard[i].append(mel)
    for speech, pieces in zip(speeches, heard, strict=True):
        assert apart(torch.cat(pieces, dim=1), speech.offline()) < LIMIT
    for state in states:
        pool.close(state)
    assert pool.free_pages == 24


@families
def test_captured_passes_equal_offline(family: str) -> None:
    """Every chunk of the table and every pass is a replay of a graph, whose outputs the next replay overwrites."""
    from tests.fakes.graph_runner import FakeGraphRunner

    runner = FakeGraphRunner()
    pool = FlowPool(networks(family).flow, slots=4, pages=24, max_chunks=8, runner=runner, page_bucket=4)
    pool.capture(2, [1])
    speeches = [Speech(family, 110, 30, 0), Speech(family, 60, 0, 1)]
    states = [pool.open() for _ in speeches]
    heard: list[list[Tensor]] = [[] for _ in speeches]
    for _ in range(5):
        now = [i for i, speech in enumerate(speeches) if states[i].tokens < speech.count]
        for i, mel in zip(now, advance(pool, [states[i] for i in now], [speeches[i] for i in now]), strict=True):
            heard[i].append(mel.clone())

    for speech, pieces in zip(speeches, heard, strict=True):
        assert apart(torch.cat(pieces, dim=1), speech.offline()) < LIMIT
    assert runner.eager_calls == 0


@families
def test_prompt_is_computed_once_per_voice(family: str) -> None:
    pool = pool_of(family)
    speech = Speech(family, 70, 40, seed=5)
    voice = pool.open()
    advance(pool, [voice], [speech])
    before = pool.free_pages
    speakers = [pool.open(voice), pool.open(voice)]
    assert pool.free_pages == before
    expected = speech.offline()
    for state in speakers:
        got = torch.cat([*advance(pool, [state], [speech]), *advance(pool, [state], [speech])], dim=1)
        assert apart(got, expected[:, RATIO * CHUNK :]) < LIMIT
        pool.close(state)
    assert pool.free_pages == before  # the voice keeps its own page
    pool.close(voice)
    assert pool.free_pages == 24


@settings(deadline=None, max_examples=6)
@given(
    family=st.sampled_from(FAMILIES),
    shapes=st.lists(st.tuples(st.integers(4, 70), st.integers(0, 40)), min_size=2, max_size=3),
    chunked=st.booleans(),
    final=st.booleans(),
)
def test_batch_equals_its_members(family: str, shapes: list[tuple[int, int]], chunked: bool, final: bool) -> None:
    speeches = [Speech(family, tokens, min(prompt, tokens - 3), seed) for seed, (tokens, prompt) in enumerate(shapes)]
    longest = max(s.count for s in speeches)
    most = max(s.prompt.shape[1] for s in speeches)
    # The content of the padding must not matter.
    tokens = torch.cat([F.pad(s.tokens, (0, longest - s.count), value=17) for s in speeches])
    prompts = torch.cat([F.pad(s.prompt, (0, 0, 0, most - s.prompt.shape[1]), value=9.0) for s in speeches])
    if final:  # the last tokens' look-ahead is silence, not padding: so is what follows a shorter member
        tokens = torch.cat([F.pad(s.tokens, (0, longest - s.count)) for s in speeches])
    lengths = torch.tensor([s.count for s in speeches])
    frames = torch.tensor([s.prompt.shape[1] for s in speeches])
    spk = torch.cat([s.spk for s in speeches])
    batch = speeches[0].flow.mel(tokens, lengths, prompts, frames, spk, chunked=chunked, final=final)
    for row, speech in enumerate(speeches):
        alone = speech.offline(chunked=chunked, final=final)
        assert apart(batch[row : row + 1, : alone.shape[1]], alone) < LIMIT


@families
def test_full_attention_differs_from_chunks(family: str) -> None:
    speech = Speech(family, 60, 20, seed=1)
    assert apart(speech.offline(chunked=False), speech.offline(chunked=True)) > 1e-2


@families
def test_tokens_beyond_the_lookahead_change_no_emitted_frame(family: str) -> None:
    speech = Speech(family, 90, 20, seed=2)
    before = speech.offline(final=False)
    speech.tokens[:, 60:] = 11
    changed = speech.offline(final=False)
    assert apart(before[:, :100], changed[:, :100]) == 0
    assert apart(before[:, 100:], changed[:, 100:]) > 0


@families
def test_exhausted_pages_raise_and_keep_the_state(family: str) -> None:
    pool = pool_of(family, slots=2, pages=2, max_chunks=2)
    speech = Speech(family, 90, 0, seed=3)
    first = pool.open()
    second = pool.open()
    with pytest.raises(OutOfMemory, match="slots"):
        pool.open()
    advance(pool, [first], [speech])
    with pytest.raises(OutOfMemory, match="pages"):
        advance(pool, [first, second], [speech, speech])
    assert (first.tokens, second.tokens, pool.free_pages) == (CHUNK, 0, 1)
    advance(pool, [first], [speech])
    pool.close(second)
    pool.close(second)
    with pytest.raises(OutOfMemory):
        advance(pool, [first], [speech])
    pool.close(first)
    assert pool.free_pages == 2
    third = pool.open()
    advance(pool, [third], [speech])
    assert apart(*(x[:, :50] for x in (advance(pool, [third], [speech])[0], speech.offline()[:, 50:]))) < LIMIT
    pool._pages.append(2)
    with pytest.raises(OutOfMemory, match="2 chunks"):
        advance(pool, [third], [speech])


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.integers(0, 5), max_size=30))
def test_slots_and_pages_are_conserved(steps: list[int]) -> None:
    pool = FREE_POOL()
    held: list[FlowState] = []
    for step in steps:
        if step == 0 and held:
            pool.close(held.pop(0))
        elif step < 3:
            try:
                held.append(pool.open(held[-1] if held and step == 2 else None))
            except OutOfMemory:
                assert len(held) == 4
        elif held and pool.free_pages:
            held[-1].pages.append(pool._pages.pop())
    own = [page for state in held for page in state.pages[state.shared :]]
    assert sorted(own + pool._pages) == list(range(1, 25))
    for state in held:
        pool.close(state)
    assert sorted(pool._pages) == list(range(1, 25))
    assert sorted(pool._slots) == list(range(4))


FREE_POOL: Callable[[], FlowPool] = lambda: pool_of("cosyvoice3")  # noqa: E731


def test_solver_noise_is_fixed_and_uses_no_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    made = initial_noise(MEL)
    assert torch.equal(before, torch.random.get_rng_state())
    assert made.shape == (NOISE_FRAMES, MEL)
    assert made.T.flatten()[:5].tolist() == pytest.approx([-1.1258, -1.1524, -0.2506, -0.4339, 0.8487], abs=1e-4)
    flow = networks("cosyvoice3").flow
    assert isinstance(flow, Flow)
    late = flow.noise_at(torch.tensor([NOISE_FRAMES - 2]), 4)[0]  # beyond 300 s it begins again
    assert torch.equal(late, torch.cat([made[-2:], made[:2]]))


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_solver_times_run_from_0_to_1(steps: int) -> None:
    times = solver_times(steps)
    assert times.shape == (steps, 2)
    assert float(times[0, 0]) == 0
    assert float(times[-1].sum()) == pytest.approx(1, abs=1e-6)
    assert (times[:, 1] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mish_equals_pytorch(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-90, 90, 7201), torch.tensor([-1e30, 1e30])]).to(dtype)
    theirs = torch.nn.functional.mish(x)
    assert torch.allclose(mish(x), theirs, rtol=1e-6 if dtype == torch.float32 else 0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_equals_pytorch(dtype: torch.dtype) -> None:
    x = torch.linspace(-12, 12, 4801).to(dtype)
    theirs = torch.nn.functional.gelu(x, approximate="tanh")
    assert torch.allclose(Gelu()(x), theirs, rtol=1e-6 if dtype == torch.float32 else 0, atol=1e-6)


@pytest.mark.parametrize("neighbors", ["times", "channels"])
def test_causal_conv_as_a_product_is_the_convolution(neighbors: str) -> None:
    conv = CausalConv(Sites(), 6, 4, 3)
    past = NoPast([(6, 2)])
    x = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
    if neighbors == "channels":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    with torch.inference_mode():
        expected = conv(x, past)
        conv.prepare()
        torch.testing.assert_close(conv(x, past), expected, rtol=1e-5, atol=1e-6)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.Conv1d, "forward", None)
            conv(x, past)  # no convolution
