"""The network of the CPU voice: loading, checking, and one call that turns phoneme ids into spectra and durations.

Owns the trust in the model file (its hash), the ONNX session and the tap that makes the model's own durations visible.
Knows no text, no utterance and no waveform.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.hibari_text import Reader
from tts_worker.errors import EngineFault

MODEL_SHA256 = "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"
"""hibari.onnx of hibari-tts 0.2.1, the voice "heart"."""

REPAIR = 'pip install --force-reinstall --no-deps "hibari-tts==0.2.1"'

FRAME_SAMPLES = 300
"""One column of the spectra: 12.5 ms at 24 kHz."""

_DURATIONS = "/Clip_output_0"  # frames-pairs per phoneme id inside the graph; not among its declared outputs
_FRAMES_PER_DURATION = 2
_OUTPUTS = ("lh", "theta", "ln", "lr", "phi", "f0", _DURATIONS)


@dataclass(frozen=True, slots=True)
class Spectra:
    """What the network says of a phrase of F frames and L phoneme ids.

    ``harmonic`` (log magnitude), ``harmonic_phase`` (before tanh), ``noise`` (log magnitude), ``free`` (log magnitude)
    and ``free_phase`` (rad) are ``[601, F] float32``, ``f0_hz [F] float32`` (0 where unvoiced), and
    ``duration_frames [L] int64`` sums to F.
    """

    harmonic: Floats
    harmonic_phase: Floats
    noise: Floats
    free: Floats
    free_phase: Floats
    f0_hz: Floats
    duration_frames: NDArray[np.int64]

    @property
    def frames(self) -> int:
        return len(self.f0_hz)


class HibariModel:
    """The network of one process. Raises EngineFault if the model is missing or not the one that was tested."""

    def __init__(self, model_path: Path | None = None, threads: int = 1) -> None:
        assets = _assets()
        path = model_path or assets / "hibari.onnx"
        try:
            model = path.read_bytes()
        except OSError as error:
            raise EngineFault(f"the voice model cannot be read ({error.strerror}); {REPAIR}") from None
        if hashlib.sha256(model).hexdigest() != MODEL_SHA256:
            raise EngineFault(f"the voice model {path.name} is not the one this version was made for; {REPAIR}")
        self._assets = assets
        self._session = _open_session(model + _output_tap(_DURATIONS), threads)
        self._reader: Reader | None = None

    @property
    def reader(self) -> Reader:
        """Reads text as this network's phonemes. The first use takes half a second: it loads the dictionaries."""
        if self._reader is None:
            self._reader = self._load_reader()
        return self._reader

    def _load_reader(self) -> Reader:
        from hibari.g2p import G2P
        from hibari.g2p.normalize import normalize
        from hibari.g2p.token import Tok

        vocabulary = json.loads((self._assets / "vocab.json").read_text(encoding="utf-8"))
        return Reader(G2P(), normalize, Tok, vocabulary)

    def predict(self, ids: Sequence[int], speed: float) -> Spectra:
        """Phoneme ids (with both pads) at a pace -> spectra. About 0.2 ms of one core per id."""
        inputs = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        harmonic, harmonic_phase, noise, free, free_phase, f0_hz, durations = self._session.run(_OUTPUTS, inputs)
        return Spectra(
            *(harmonic[0], harmonic_phase[0], noise[0], free[0], free_phase[0], f0_hz[0]),
            duration_frames=np.rint(durations).astype(np.int64) * _FRAMES_PER_DURATION,
        )


def _assets() -> Path:
    try:
        import hibari
    except ImportError:
        raise EngineFault(f"the CPU voice is not installed; {REPAIR}") from None
    return Path(hibari.__file__).parent / "assets"


def _open_session(model: bytes, threads: int) -> Any:
    import onnxruntime  # late: it costs 0.2 s that other engines need not pay

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # it would keep the most that was ever needed, and is not faster here
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _output_tap(tensor: str) -> bytes:
    """Bytes that, appended to a serialized ONNX model, add ``tensor`` to the outputs of its graph.

    A protobuf message that occurs twice is merged with itself, and repeated fields are joined: so a second
    ``ModelProto.graph`` that holds nothing but one output extends the first. No ONNX library is needed, and the file
    on disk stays the one with the known hash. Source: protobuf encoding, "Last One Wins"; onnx.proto.
    """
    name = tensor.encode()
    value_info = _field(1, name)  # ValueInfoProto.name
    graph = _field(12, value_info)  # GraphProto.output
    return _field(7, graph)  # ModelProto.graph


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field; short ones only."""
    if len(payload) > 127:
        raise ValueError("one length byte is all that is needed here")
    return bytes([number << 3 | 2, len(payload)]) + payload
