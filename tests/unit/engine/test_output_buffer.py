from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.engine.output_buffer import OutputBuffer
from tts_worker.types import UtteranceKey, WordTiming

KEY = UtteranceKey("s", 1)


def pcm(start: int, samples: int) -> bytes:
    return b"".join(((start + i) % 30_000).to_bytes(2, "little") for i in range(samples))


@settings(deadline=None)
@given(
    st.integers(0, 400),
    st.lists(
        st.one_of(
            st.tuples(st.just("render"), st.integers(0, 300)),
            st.tuples(st.just("grant"), st.integers(1, 300)),
            st.tuples(st.just("emit"), st.integers(1, 200)),
        ),
        max_size=50,
    ),
)
def test_audio_stays_within_credit_and_is_complete(credit: int, script: list[tuple[str, int]]) -> None:
    output = OutputBuffer(KEY, credit)
    granted = credit
    emitted = b""
    words_in: list[WordTiming] = []
    words_out: list[WordTiming] = []
    index = 0
    for action, n in script:
        if action == "render":
            start = output.rendered_samples
            words = [WordTiming(start, start + 1, start, start + n)] if n else []
            words_in += words
            output.render(pcm(start, n), words)
        elif action == "grant":
            output.grant(n)
            granted += n
        else:
            audio = output.emit(n)
            if audio is None:
                assert output.waiting_samples == 0 or output.credit_samples == 0
                continue
            assert 0 < audio.samples <= n
            assert audio.meta.index == index
            assert audio.meta.start_sample == len(emitted) // 2
            index += 1
            emitted += audio.pcm
            words_out += audio.words
            assert all(w.start_sample < output.emitted_samples for w in words_out)
            assert [w for w in words_in if w.start_sample < output.emitted_samples] == words_out
        assert output.emitted_samples <= granted
        assert output.credit_samples == granted - output.emitted_samples
        assert output.waiting_samples == output.rendered_samples - output.emitted_samples
    output.grant(10_000_000)
    while (audio := output.emit(77)) is not None:
        emitted += audio.pcm
    assert emitted == pcm(0, output.rendered_samples)


def test_render_cost_is_reported_once() -> None:
    output = OutputBuffer(KEY, 1_000)
    output.render(pcm(0, 30), wall_ms=12.5, stages_ms=(("net", 12.5),), text_range=(3, 9))
    metas = [audio.meta for _ in range(3) if (audio := output.emit(10)) is not None]
    assert [m.wall_ms for m in metas] == [12.5, 0.0, 0.0]
    assert [m.stages_ms for m in metas] == [(("net", 12.5),), (), ()]
    assert {(m.text_start, m.text_end) for m in metas} == {(3, 9)}


def test_trailing_silent_word_is_in_the_last_chunk() -> None:
    output = OutputBuffer(KEY, 1_000)
    silent = WordTiming(5, 6, 20, 20)
    output.render(pcm(0, 20), [WordTiming(0, 4, 0, 20), silent])
    audio = output.emit(100, last=True)
    assert audio is not None
    assert audio.words[-1] == silent


@given(parts=st.lists(st.integers(1, 9), min_size=1))
def test_silent_words_are_in_the_last_chunk_of_their_audio(parts: list[int]) -> None:
    """Whether text follows is not known yet: nothing else could carry them."""
    output = OutputBuffer(KEY, 1_000)
    silent = [WordTiming(5, 6, 20, 20), WordTiming(6, 7, 20, 20)]
    output.render(pcm(0, 20), [WordTiming(0, 4, 0, 20), *silent])
    chunks = [audio for samples in [*parts, 20] if (audio := output.emit(samples)) is not None]
    assert list(chunks[-1].words[-2:]) == silent
    assert sum(len(chunk.words) for chunk in chunks) == 3
    output.render(pcm(20, 10), [WordTiming(7, 9, 20, 30)])
    audio = output.emit(10)
    assert audio is not None
    assert audio.words == (WordTiming(7, 9, 20, 30),)


def test_lead_is_rendered_minus_taken_samples() -> None:
    output = OutputBuffer(KEY, 100)
    output.render(pcm(0, 250))
    output.emit(100)
    assert (output.lead_samples, output.waiting_samples) == (250, 150)
    output.grant(60)
    assert output.lead_samples == 190


def test_lead_of_a_reader_that_buffers_is_measured_by_playback() -> None:
    output = OutputBuffer(KEY, 24_000, buffered=True)
    output.render(bytes(48_000))
    while (audio := output.emit(24_000)) is not None:
        output.grant(audio.samples)
    assert output.lead_at_samples(0) == 24_000
    assert output.lead_at_samples(500_000) == 12_000


def test_lead_of_a_reader_that_stops_taking_is_what_it_left() -> None:
    output = OutputBuffer(KEY, 4_800, buffered=True)
    output.render(bytes(48_000))
    output.emit(4_800)
    output.lead_at_samples(0)
    assert output.lead_at_samples(10_000_000) == 24_000
