"""What an engine has computed and how: stage times, CUDA graphs, and what it does not use as asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.features.acceleration.graphs import CapturingRunner


def stage_times_of(engine: CosyVoiceEngine) -> dict[str, float]:
    timings = engine.timings
    return {
        "prefill_ms": timings.prefill_ms,
        "decode_ms": timings.decode_ms,
        "flow_ms": timings.flow_ms,
        "vocoder_ms": timings.vocoder_ms,
    }


def computations_of(engine: CosyVoiceEngine) -> dict[str, dict[str, int]]:
    """Return replays, eager calls and graphs of each computation, by name."""
    return {
        counts.name: {
            "captured": counts.captured,
            "refused": counts.refused,
            "replays": counts.replays,
            "eager_calls": counts.eager_calls,
        }
        for counts in engine.components.computations
    }


def fallbacks_of(engine: CosyVoiceEngine) -> dict[str, Any]:
    """Return what the engine does not use as asked, with the reasons, and how many shapes are compiled."""
    parts = engine.components
    compiler = parts.compiler
    runners = [runner for runner in parts.graph_runners if isinstance(runner, CapturingRunner)]
    return {
        "degraded": list(engine.info.degraded),
        "refused_graphs": {" ".join(map(str, key)): why for runner in runners for key, why in runner.refused.items()},
        "unused_kernels": dict(parts.kernel_faults),
        "compiled_shapes": {} if compiler is None else dict(compiler.shapes),
        "not_compiled": {} if compiler is None else dict(compiler.faults),
    }


@dataclass(frozen=True)
class EngineCounts:
    """What an engine has computed until now.

    Attributes:
        computations: Replays and eager calls, by name.
        eager_keys: Calls without a graph, by computation and shape.
    """

    computations: dict[str, dict[str, int]]
    eager_keys: Counter[str]

    @classmethod
    def of(cls, engine: CosyVoiceEngine) -> EngineCounts:
        return cls(computations_of(engine), Counter(engine.components.eager_keys))

    def since(self, engine: CosyVoiceEngine) -> dict[str, Any]:
        """Return what ``engine`` has computed since then."""
        now = EngineCounts.of(engine)
        return {
            "computations": {
                name: {
                    kind: counts[kind] - self.computations.get(name, {}).get(kind, 0)
                    for kind in ("replays", "eager_calls")
                }
                for name, counts in now.computations.items()
            },
            "without_graph": dict((now.eager_keys - self.eager_keys).most_common()),
        }
