"""Record numbers of CosyVoice-300M's networks: ``python -m tools.record_first_generation FILE``.

Runs the reference's own modules (https://github.com/FunAudioLLM/CosyVoice, with its requirements, on ``PYTHONPATH``)
with small random weights and writes weights, inputs and outputs to one safetensors file, which
``tests/unit/cosyvoice/test_transformer_lm.py`` reads.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

TEXT_SIZE, HIDDEN, HEADS, INNER, TEXT_LAYERS, LAYERS = 12, 16, 2, 24, 2, 2
TEXT_VOCAB, SPEECH_TOKENS, SPK = 40, 30, 8


def build() -> Any:
    """The reference's language model with small dimensions and random weights."""
    from cosyvoice.llm.llm import TransformerLM
    from cosyvoice.transformer.encoder import ConformerEncoder, TransformerEncoder

    shared = {
        "output_size": HIDDEN,
        "attention_heads": HEADS,
        "linear_units": INNER,
        "pos_enc_layer_type": "rel_pos_espnet",
        "selfattention_layer_type": "rel_selfattn",
        "static_chunk_size": 1,
    }
    text_encoder = ConformerEncoder(
        input_size=TEXT_SIZE,
        num_blocks=TEXT_LAYERS,
        input_layer="linear",
        normalize_before=True,
        use_cnn_module=False,
        macaron_style=False,
        **shared,
    )
    decoder = TransformerEncoder(input_size=HIDDEN, num_blocks=LAYERS, input_layer="linear_legacy", **shared)
    lm = TransformerLM(
        text_encoder_input_size=TEXT_SIZE,
        llm_input_size=HIDDEN,
        llm_output_size=HIDDEN,
        text_token_size=TEXT_VOCAB,
        speech_token_size=SPEECH_TOKENS,
        text_encoder=text_encoder,
        llm=decoder,
        sampling=lambda scores, decoded, count: int(scores.argmax()),
        spk_embed_dim=SPK,
    ).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / max(1, parameter.shape[-1]) ** 0.5)
    return lm


def record(lm: Any, with_speaker: bool) -> dict[str, Tensor]:
    """Run the reference's inference; return its inputs, encoded text, drawn ids and the scores of each draw."""
    generator = torch.Generator().manual_seed(2)
    prompt_text = torch.randint(0, TEXT_VOCAB, (1, 3), generator=generator)
    text = torch.randint(0, TEXT_VOCAB, (1, 5), generator=generator)
    speech = torch.randint(0, SPEECH_TOKENS, (1, 7), generator=generator)
    embedding = torch.randn(1, SPK, generator=generator) if with_speaker else torch.zeros(0, SPK)
    encoded: list[Tensor] = []
    scores: list[Tensor] = []
    encode, sample = lm.encode, lm.sampling_ids

    def note_text(*args: Any) -> Any:
        result = encode(*args)
        encoded.append(result[0])
        return result

    def note_scores(logp: Tensor, *args: Any, **options: Any) -> Any:
        scores.append(logp.clone())
        return sample(logp, *args, **options)

    lm.encode, lm.sampling_ids = note_text, note_scores
    try:
        drawn = list(
            lm.inference(
                text,
                torch.tensor([text.shape[1]], dtype=torch.int32),
                prompt_text,
                torch.tensor([prompt_text.shape[1]], dtype=torch.int32),
                speech,
                torch.tensor([speech.shape[1]], dtype=torch.int32),
                embedding,
                max_token_text_ratio=4,
            )
        )
    finally:
        lm.encode, lm.sampling_ids = encode, sample
    return {
        "text": torch.cat([prompt_text, text], dim=1),
        "speech": speech,
        "embedding": embedding,
        "encoded": encoded[0],
        "drawn": torch.tensor(drawn),
        "scores": torch.stack(scores),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    lm = build()
    tensors = {f"weights.{key}": value for key, value in lm.state_dict().items()}
    for name, with_speaker in (("zero_shot", True), ("instruct", False)):
        tensors |= {f"{name}.{key}": value for key, value in record(lm, with_speaker).items()}
    save_file({key: value.detach().clone().contiguous() for key, value in tensors.items()}, str(file))


if __name__ == "__main__":
    main()
