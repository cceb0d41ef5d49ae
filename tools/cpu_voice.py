"""Profile the CPU voice by stage: one JSON object on standard output.

    python -m tools.cpu_voice [--rounds 5]

For every clause: the time to its first and last chunk, and by stage, with one thread; medians over the rounds.
``realtime_streams`` is the number of real-time streams that one core can supply (1 / real-time factor).
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from time import perf_counter

from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel
from tts_worker.types import SAMPLE_RATE_HZ, Audio, EndText, Event, Open, Segment, SynthesisParams, Text, UtteranceKey

CLAUSES = (
    "Yes.",
    "Hello there,",
    "how can I help you today?",
    "The total comes to $42.50, including tax.",
    "The library opens at nine, closes at half past five, and stays shut on Sundays and public holidays.",
    "Although the museum was crowded, the children enjoyed the dinosaurs, the rockets, and especially the giant whale"
    " that hung from the ceiling of the main hall.",
)


def speak(engine: HibariEngine, text: str) -> tuple[float, float, list[Audio]]:
    """Return the milliseconds to the first and to the last chunk, and the chunks."""
    key = UtteranceKey("bench", 1)
    segment = Segment.whole(text)
    started = perf_counter()
    for command in (Open(key, SynthesisParams(VOICE), 1 << 40), Text(key, segment), EndText(key)):
        engine.handle(command)
    chunks: list[Audio] = []
    first_ms = 0.0
    while engine.has_work:
        events: list[Event] = list(engine.step(perf_counter()))
        chunks += (event for event in events if isinstance(event, Audio))
        if chunks and not first_ms:
            first_ms = 1000 * (perf_counter() - started)
    return first_ms, 1000 * (perf_counter() - started), chunks


def measure(engine: HibariEngine, text: str, rounds: int) -> dict[str, float | int]:
    runs = [speak(engine, text) for _ in range(rounds)]
    stages: dict[str, list[float]] = {}
    for _, _, chunks in runs:
        spent: dict[str, float] = {}
        for chunk in chunks:
            for stage, stage_ms in chunk.meta.stages_ms:
                spent[stage] = spent.get(stage, 0.0) + stage_ms
        for stage, stage_ms in spent.items():
            stages.setdefault(stage, []).append(stage_ms)
    audio_ms = 1000 * sum(chunk.samples for chunk in runs[0][2]) / SAMPLE_RATE_HZ
    total_ms = median(total for _, total, _ in runs)
    return {
        "chars": len(text),
        "audio_ms": round(audio_ms),
        "first_chunk_ms": round(median(first for first, _, _ in runs), 2),
        "total_ms": round(total_ms, 2),
        "rtf": round(total_ms / audio_ms, 5),
        **{f"{stage}_ms": round(median(values), 2) for stage, values in stages.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    started = perf_counter()
    engine = HibariEngine(HibariModel())
    loaded = perf_counter()
    engine.warm_up()
    warm = perf_counter()
    clauses = [measure(engine, text, rounds) for text in CLAUSES]
    rtf = sum(clause["total_ms"] for clause in clauses) / sum(clause["audio_ms"] for clause in clauses)
    result = {
        "engine": engine.info.name,
        "load_ms": round(1000 * (loaded - started)),
        "warm_up_ms": round(1000 * (warm - loaded)),
        "rtf": round(rtf, 5),
        "realtime_streams": round(1 / rtf),
        "clauses": clauses,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
