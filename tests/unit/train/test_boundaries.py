"""The study of chunk boundaries finds a seam, and none where there is none."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from tools.train.boundaries import HOP, draw, study

SAMPLES = 100 * HOP
BEGINS = [31 * HOP + 7, 64 * HOP]


def clips(step: float) -> list[tuple[np.ndarray, np.ndarray, list[int]]]:
    """Noise as speech; streamed audio differs a little everywhere, and its level jumps by ``step`` between chunks."""
    rng = np.random.default_rng(1)
    result = []
    for _ in range(6):
        offline = rng.standard_normal(SAMPLES) * 0.1
        streamed = offline + rng.standard_normal(SAMPLES) * 1e-3
        streamed[BEGINS[0] : BEGINS[1]] *= 1 + step
        result.append((streamed, offline, BEGINS))
    return result


@pytest.mark.parametrize("step", [0.0, 0.5])
def test_jump_between_chunks_is_found_and_nothing_else(step: float) -> None:
    result = study(clips(step))
    low, high = result.usual
    assert result.boundaries == 12
    assert (low <= result.excess <= high) == (step == 0)
    image = ElementTree.fromstring(draw(result))
    assert len(list(image.iter("{http://www.w3.org/2000/svg}path"))) == 4
