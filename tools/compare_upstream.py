"""Compare the streaming engine with the reference code: same weights, same forced tokens, one run, alternating.

    python -m tools.compare_upstream --checkout DIR --bundle DIR [--baseline SRC] [--exact] [--seconds 20] [--json]

``--checkout`` is a checkout of the reference repository with ``third_party/Matcha-TTS``. Its dependencies beyond torch,
numpy and hyperpyyaml (transformers, diffusers, x-transformers, einops, conformer, scipy, omegaconf) must be installed;
modules that it imports only for training or files are stubbed. ``--bundle`` is a model directory; random weights
suffice (``python -m tools.random_bundle``).

The reference runs twice: unchanged, where the chunk size is stored on the model and grows from one request to the next,
and with the chunk size reset before each request. Both sides run the language model and sample; the sampled tokens are
then overwritten. Compared are wall and processor time (the machine may be shared), the first chunk, and the mel of the
same tokens under the same chunk mask. The time to the first chunk varies by a third between utterances, so short ones
are spoken for it as well (``--first-repeats``). No file of the reference is changed.

The engine runs in a separate process. ``--baseline`` is the source folder of another version of it, which runs in
turn with both: what a processor gives to matrix products and what to everything else differs between machines, so that
ratios of two versions can be compared only within a run. So do the last bits of its exponentials and products, and
with them the mels: their differences can be compared only within a run, too. ``--exact`` also computes the reference's
mel in float64 and tells how far each side is from that.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import tts_worker
from tools.bench.engine import TEXT, forced_tokens, random_voice
from tools.forced_speech import SWITCH_INTERVAL_S, VOICE
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.errors import EngineFault
from tts_worker.types import SAMPLE_RATE_HZ
from tts_worker.voices.files import save_voice

STUBBED_MODULES = (
    "torchaudio",
    "onnxruntime",
    "whisper",
    "lightning",
    "hydra",
    "rootutils",
    "wget",
    "gdown",
    "matplotlib",
    "librosa",
    "pyworld",
    "modelscope",
    "tiktoken",
    "inflect",
)
"""Imported by files that inference needs, but not used by it."""

SHORT_TOKENS = 60
"""Length of an utterance for the first chunk. The language models still run while it is computed."""

END_OF_PROMPT = 151646
END_OF_NETWORKS = "\nget_tokenizer"  # in every published YAML the networks come before this key


class _StubModule(types.ModuleType):
    """A module that has every attribute and does nothing."""

    __path__: list[str] = []  # noqa: RUF012 (required by the import system)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StubModule(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else self  # also as a decorator

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class _Finder(MetaPathFinder):
    """Finds stubs for modules that are not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] not in STUBBED_MODULES:
            return None
        return importlib.util.spec_from_loader(name, _Loader())


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def _set_encoder_width(checkout: Path, width: int) -> None:
    """Load the reference's encoder with another width, which its code fixes at 512; random weights may differ."""
    name = "cosyvoice.transformer.upsample_encoder"
    file = checkout / f"{name.replace('.', '/')}.py"
    module = types.ModuleType(name)
    module.__file__ = str(file)
    exec(compile(file.read_text("utf-8").replace("=512", f"={width}"), str(file), "exec"), module.__dict__)
    sys.modules[name] = module
    importlib.import_module("cosyvoice.transformer").upsample_encoder = module  # type: ignore[attr-defined]


@dataclass(frozen=True)
class StreamTimes:
    """Measurements of one utterance."""

    first_s: float
    first_samples: int
    wall_s: float
    cpu_s: float
    chunks: int
    samples: int


@dataclass(frozen=True)
class FlowPrompt:
    """The part of a voice's prompt that an engine passes to the flow.

    Attributes:
        tokens: ``[P]`` speech tokens.
        mel: ``[frames, mel]``.
    """

    tokens: np.ndarray[Any, Any]
    mel: np.ndarray[Any, Any]


class Reference:
    """The reference's streaming model with forced tokens."""

    def __init__(self, checkout: Path, bundle: Bundle) -> None:
        sys.meta_path.append(_Finder())
        sys.path[:0] = [str(checkout), str(checkout / "third_party" / "Matcha-TTS")]
        import transformers
        from hyperpyyaml import load_hyperpyyaml

        def from_config(directory: str) -> Any:
            return transformers.Qwen2ForCausalLM(transformers.AutoConfig.from_pretrained(directory))

        # The weights come from llm.pt, their only copy in a bundle of random weights.
        transformers.Qwen2ForCausalLM.from_pretrained = from_config
        config = bundle.config
        if config.flow.encoder is not None:
            _set_encoder_width(checkout, config.flow.encoder.output_size)
        text = (bundle.path / f"{config.family}.yaml").read_text("utf-8").split(END_OF_NETWORKS)[0]
        parts = load_hyperpyyaml(text, overrides={"qwen_pretrain_path": str(bundle.text_model_dir)})
        from cosyvoice.cli import model

        logging.getLogger().setLevel(logging.WARNING)
        kind = model.CosyVoice3Model if config.family == "cosyvoice3" else model.CosyVoice2Model
        self.model = kind(parts["llm"], parts["flow"], parts["hift"], False)
        self.model.load(*(str(bundle.path / f"{part}.pt") for part in ("llm", "flow", "hift")))
        self._hop = self.model.token_hop_len
        self._draw = self.model.llm.sampling
        # CosyVoice3 requires the end-of-prompt id, which the small vocabulary of random weights lacks.
        table = self.model.llm.llm.model.model.embed_tokens
        table.forward = lambda ids: torch.nn.functional.embedding(ids % table.weight.shape[0], table.weight)
        self._eos = config.lm.eos_id

    def _force(self, tokens: np.ndarray[Any, Any]) -> None:
        def sampling(scores: Tensor, decoded: list[int], count: int) -> int:
            self._draw(scores, decoded, count)
            return int(tokens[len(decoded)]) if len(decoded) < len(tokens) else self._eos

        self.model.llm.sampling = sampling

    def speak(self, inputs: dict[str, Tensor], tokens: np.ndarray[Any, Any], *, reset_hop: bool) -> StreamTimes:
        """Stream ``tokens``; with ``reset_hop``, start with the chunk size of a fresh model."""
        if reset_hop:
            self.model.token_hop_len = self._hop
        self._force(tokens)
        first_s = 0.0
        first_samples = 0
        samples = 0
        chunks = 0
        began_s = time.perf_counter()
        began_cpu_s = time.process_time()
        for chunk in self.model.tts(**inputs, stream=True):
            if not chunks:
                first_s = time.perf_counter() - began_s
                first_samples = chunk["tts_speech"].shape[1]
            chunks += 1
            samples += chunk["tts_speech"].shape[1]
        wall_s = time.perf_counter() - began_s
        cpu_s = time.process_time() - began_cpu_s
        return StreamTimes(first_s, first_samples, wall_s, cpu_s, chunks, samples)

    @torch.inference_mode()
    def mel(
        self,
        prompt: FlowPrompt,
        embedding: Tensor,
        tokens: np.ndarray[Any, Any],
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the mel of all ``tokens`` in one pass under the chunk mask: ``[mel, frames]``."""
        speech_tokens = torch.from_numpy(tokens.astype(np.int32))[None]
        prompt_tokens = torch.from_numpy(prompt.tokens.astype(np.int32))[None]
        prompt_mel = torch.from_numpy(prompt.mel)[None].to(dtype)

        def length(x: Tensor) -> Tensor:
            return torch.tensor([x.shape[1]], dtype=torch.int32)

        mel: Tensor
        mel, _ = self.model.flow.inference(
            token=speech_tokens,
            token_len=length(speech_tokens),
            prompt_token=prompt_tokens,
            prompt_token_len=length(prompt_tokens),
            prompt_feat=prompt_mel,
            prompt_feat_len=length(prompt_mel),
            embedding=embedding.to(dtype),
            streaming=True,
            finalize=True,
        )
        return mel[0]

    def exact_mel(self, prompt: FlowPrompt, embedding: Tensor, tokens: np.ndarray[Any, Any]) -> Tensor:
        """Return what ``mel`` returns, computed in float64, except for stored tables of positions."""
        decoder = importlib.import_module("cosyvoice.flow.decoder")
        to_bias = decoder.mask_to_bias

        def mask_to_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:  # the reference's rejects float64
            bias: Tensor = to_bias(mask, torch.float32)
            return bias.to(dtype)

        flow = self.model.flow
        self.model.flow = deepcopy(flow).double()
        try:
            with patch.object(Tensor, "float", Tensor.double), patch.object(decoder, "mask_to_bias", mask_to_bias):
                return self.mel(prompt, embedding, tokens, torch.float64)
        finally:
            self.model.flow = flow


class EngineProcess:
    """The streaming engine of one version in a separate process.

    Args:
        source: Source folder of the version.
        args: Arguments of this tool.
        voices: Directory of stored voices, with the one to speak with; receives the mels.
    """

    def __init__(self, source: Path, args: argparse.Namespace, voices: Path) -> None:
        words = [sys.executable, str(Path(__file__).with_name("forced_speech.py")), str(args.bundle), str(voices)]
        for name in ("threads", "overlap", "first_tokens"):
            words += [f"--{name.replace('_', '-')}", str(int(getattr(args, name)))]
        words += ["--max-segment-s", str(int(args.seconds) + 2)]
        if args.stride_chunks is not None:
            words += ["--stride-chunks", str(args.stride_chunks)]
        environment = os.environ | {"PYTHONPATH": str(source)}
        self._mel_file = voices / "mel.npz"
        self._process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineFault("the process of the engine has ended")
        return line

    def _request(self, tokens: np.ndarray[Any, Any], mel_file: Path | None = None) -> Any:
        assert self._process.stdin is not None
        request = {"tokens": tokens.tolist(), "mel_file": None if mel_file is None else str(mel_file)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def stream(self, tokens: np.ndarray[Any, Any]) -> StreamTimes:
        return StreamTimes(**self._request(tokens))

    def mel(self, tokens: np.ndarray[Any, Any]) -> tuple[Tensor, FlowPrompt]:
        """Return the streamed mel for ``tokens``, ``[mel, frames]``, and the prompt that preceded it."""
        self._request(tokens, self._mel_file)
        with np.load(self._mel_file) as arrays:
            return torch.from_numpy(arrays["mel"]), FlowPrompt(arrays["prompt"], arrays["prompt_mel"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _exit_on_thread_failure(failure: Any) -> None:
    """End the process, since the reference waits forever for a language model whose thread has died."""
    sys.excepthook(failure.exc_type, failure.exc_value, failure.exc_traceback)
    os._exit(1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checkout", type=Path, required=True, metavar="DIR", help="checkout of the reference repository"
    )
    parser.add_argument(
        "--bundle", type=Path, required=True, metavar="DIR", help="model directory; random weights suffice"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="audio length (default 20)")
    parser.add_argument(
        "--prompt-tokens", type=int, default=125, help="prompt length of the random voice (default 125)"
    )
    parser.add_argument("--first-tokens", type=int, default=8, help="tokens of the engine before the first boundary")
    parser.add_argument(
        "--stride-chunks",
        type=int,
        metavar="N",
        help="chunks that the engine computes as one (default: 2, as served; those of the reference grow to 4)",
    )
    parser.add_argument("--baseline", type=Path, metavar="SRC", help="source folder of another version of the engine")
    parser.add_argument("--exact", action="store_true", help="also compute the mel in float64 (about a minute)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the figures are medians (default 3)")
    parser.add_argument(
        "--first-repeats", type=int, default=8, help="short utterances of each, for the first chunk (default 8)"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument(
        "--as-it-is",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also run the reference without resetting its chunk size (default)",
    )
    parser.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the engine in two threads, as the reference does (default)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    warnings.simplefilter("ignore")
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # for the reference, too
    threading.excepthook = _exit_on_thread_failure
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as voices:
        figures = compare(args, Path(voices))
    show(figures, args.json)
    return 0


def compare(args: argparse.Namespace, voices: Path) -> dict[str, Any]:
    """Run all sides and return the figures. ``voices`` is an empty directory."""
    bundle = Bundle.open(args.bundle)
    voice = random_voice(bundle, args.prompt_tokens)
    save_voice(voices, VOICE, voice)
    tokens = forced_tokens(int(args.seconds * 25), 5)

    reference = Reference(args.checkout, bundle)
    versions = {"ours": Path(tts_worker.__file__).parents[1]}
    if args.baseline is not None:
        versions["baseline"] = args.baseline.resolve()
    engines = {name: EngineProcess(source, args, voices) for name, source in versions.items()}

    ids = TextTokenizer.from_bundle(bundle).encode(TEXT)
    text_tokens = max(1, len(tokens) // 10)  # the reference accepts 2 to 20 speech tokens per text token
    text = (ids * (text_tokens // len(ids) + 1))[:text_tokens]
    embedding = torch.from_numpy(voice.embedding)[None]
    inputs = {
        "text": torch.tensor([text], dtype=torch.int32),
        "flow_embedding": embedding,
        "llm_embedding": embedding,
        "prompt_text": torch.tensor([[END_OF_PROMPT, *voice.prompt_text_ids.tolist()]], dtype=torch.int32),
        "llm_prompt_speech_token": torch.from_numpy(voice.tokens)[None],
        "flow_prompt_speech_token": torch.from_numpy(voice.tokens)[None],
        "prompt_speech_feat": torch.from_numpy(voice.mel)[None],
    }
    streamed = {name: engine.mel(tokens) for name, engine in engines.items()}
    _, prompt = streamed["ours"]
    if any(len(other.tokens) != len(prompt.tokens) for _, other in streamed.values()):
        raise EngineFault("the versions trim the prompt differently: their mels cannot be compared")
    mels = {name: mel for name, (mel, _) in streamed.items()}
    differences = mel_figures(
        reference.mel(prompt, embedding, tokens),
        mels,
        reference.exact_mel(prompt, embedding, tokens) if args.exact else None,
    )

    reference.speak(inputs, tokens[:SHORT_TOKENS], reset_hop=True)  # warm-up
    short: dict[str, list[StreamTimes]] = {name: [] for name in (*engines, "hop_reset")}
    for turn in range(args.first_repeats):
        for name, engine in in_turn(engines, turn):
            short[name].append(engine.stream(tokens[:SHORT_TOKENS]))
        short["hop_reset"].append(reference.speak(inputs, tokens[:SHORT_TOKENS], reset_hop=True))
    runs: dict[str, list[StreamTimes]] = {name: [] for name in (*engines, "hop_reset")}
    if args.as_it_is:
        runs["as_it_is"] = []
        for _ in range(2):  # the chunk size of a fresh model grows in its first two requests
            reference.speak(inputs, tokens[:160], reset_hop=False)
    for turn in range(args.repeats):
        for name, engine in in_turn(engines, turn):
            runs[name].append(engine.stream(tokens))
        if args.as_it_is:
            runs["as_it_is"].append(reference.speak(inputs, tokens, reset_hop=False))
        leaked = reference.model.token_hop_len
        runs["hop_reset"].append(reference.speak(inputs, tokens, reset_hop=True))
        reference.model.token_hop_len = leaked
        assert threading.active_count() < 8
    for engine in engines.values():
        engine.close()
    figures = {
        "family": bundle.config.family,
        "seconds": args.seconds,
        "prompt_tokens": args.prompt_tokens,
        "threads": args.threads,
        "overlap": args.overlap,
        "stride_chunks": args.stride_chunks,
        "repeats": args.repeats,
        "first_repeats": args.first_repeats,
        "torch": torch.__version__,
    }
    return figures | differences | figures_of(runs, short)


def in_turn(engines: Mapping[str, EngineProcess], turn: int) -> list[tuple[str, EngineProcess]]:
    """Return the engines in the other order in every other turn: the first one follows the reference."""
    return list(engines.items())[:: -1 if turn % 2 else 1]


def mel_figures(theirs: Tensor, mels: Mapping[str, Tensor], exact: Tensor | None = None) -> dict[str, float]:
    """Return how far the mel of each version is from the reference's, and each of them from the exact one.

    Args:
        theirs: ``[mel, frames]`` of the reference.
        mels: ``[mel, frames]`` of each version of the engine.
        exact: ``[mel, frames]`` of the reference in float64.

    Raises:
        ValueError: A mel has another shape.
    """
    figures = {"mel_std": float(theirs.std())}

    def add(name: str, mel: Tensor, right: Tensor) -> None:
        if mel.shape != right.shape:
            raise ValueError(f"mels of different shapes: {tuple(mel.shape)} and {tuple(right.shape)}")
        distance = (mel.double() - right.double()).abs()
        figures[f"{name}_largest"] = float(distance.max())
        figures[f"{name}_rms"] = float(distance.square().mean().sqrt())

    for name, mel in mels.items():
        add(f"{name}_mel_difference", mel, theirs)
    if exact is not None:
        for name, mel in {"reference": theirs, **mels}.items():
            add(f"{name}_mel_error", mel, exact)
    return figures


def figures_of(
    runs: Mapping[str, list[StreamTimes]], short: Mapping[str, list[StreamTimes]] = types.MappingProxyType({})
) -> dict[str, Any]:
    """Return the median times of each side, and the ratio of the reference's to those of each version of the engine.

    Of the ``short`` utterances only the first chunk counts.
    """
    figures: dict[str, Any] = {}
    medians: dict[str, dict[str, float]] = {}
    for name, streamed in runs.items():
        medians[name] = {
            "first_s": median(run.first_s for run in (*streamed, *short.get(name, ()))),
            "wall_s": median(run.wall_s for run in streamed),
            "cpu_s": median(run.cpu_s for run in streamed),
        }
        figures |= {f"{name}_{key}": round(value, 3) for key, value in medians[name].items()}
        figures[f"{name}_first_audio_s"] = round(streamed[-1].first_samples / SAMPLE_RATE_HZ, 3)
        figures[f"{name}_chunks"] = streamed[-1].chunks
        figures[f"{name}_samples"] = streamed[-1].samples
    versions = [name for name in ("ours", "baseline") if name in runs]
    for name in (name for name in runs if name not in versions):
        for version in versions:
            for key in ("wall_s", "cpu_s", "first_s"):
                ratio = round(medians[name][key] / medians[version][key], 2)
                figures[f"{name}_over_{version}_{key.removesuffix('_s')}"] = ratio
    return figures


def show(figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"  {name:32} {value}")


if __name__ == "__main__":
    sys.exit(main())
