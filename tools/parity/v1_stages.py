"""Stages of CosyVoice-300M: language model, flow, streamed parts, and whole utterances (``tools/record_v1.py``)."""

from __future__ import annotations

import torch
from torch import Tensor

from tools.parity.compare import FEATURES, MEL, NETWORK, PITCH_HZ, SCORES, CheckList, Golden
from tools.reference.algorithms import FadeState, reference_fade
from tools.reference.v1_pipeline import V1Decoder, V1Pipeline
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise
from tts_worker.engine.cosyvoice.networks.kv_cache import NoPast
from tts_worker.engine.cosyvoice.networks.lm_inputs import Kind
from tts_worker.engine.cosyvoice.v1.flow import V1Flow, fade_mel
from tts_worker.engine.cosyvoice.v1.transformer_lm import TransformerLm
from tts_worker.engine.cosyvoice.voices.features import MelSpectrogram
from tts_worker.engine.cosyvoice.voices.speaker import Request

HOP_TOKENS = 30  # of the recorded stream; the model's own would make long files
SAMPLE_STRIDE = 5  # of the recorded utterances
SPEECH_SEED = 11  # of the recorded draws


def check_v1_llm(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare the encoded text and, with teacher forcing, the scores of each draw and the greedy choice."""
    for mode in sorted({key.partition(".")[0] for key in golden}):
        _check_v1_mode(checks, golden, networks, mode)


def _check_v1_mode(checks: CheckList, golden: Golden, networks: Networks, mode: str) -> None:
    lm = networks.lm
    assert isinstance(lm, TransformerLm)
    embedding = golden[f"{mode}.embedding"]  # [0, spk] in the mode that does not tell the speaker
    request = Request(
        golden.ids(f"{mode}.text"),
        embedding[0] if len(embedding) else torch.zeros(lm.dims.spk_embed),
        lm_prompt=golden.ids(f"{mode}.speech"),
        with_speaker=len(embedding) > 0,
    )
    decoder = V1Decoder(networks, request)
    device = lm.llm_decoder.weight.device
    ids = torch.tensor([request.text], device=device)
    positions = torch.arange(ids.shape[1], device=device)[None]
    encoded = lm.text_encoder(lm.text_embedding(ids), positions, ids.shape[1], NoPast([]))
    checks.close(golden, f"{mode}.encoded", lm.text_encoder_affine_layer(encoded).float(), FEATURES)
    drawn = golden.ids(f"{mode}.drawn")
    items = [*decoder.start(request), (Kind.TASK, 0), *((Kind.SPEECH, i) for i in request.lm_prompt)]
    rows = []
    for token in drawn:
        rows.append(decoder.feed(items).float().log_softmax(1).cpu())
        items = [(Kind.SPEECH, token)]
    scores = torch.cat(rows)
    checks.close(golden, f"{mode}.scores", scores, SCORES)
    if checks.relative_limit is None:
        checks.ids(golden, f"{mode}.drawn", scores.argmax(1).tolist())
    else:
        checks.info(golden.name, f"{mode}.drawn", "not compared in bfloat16: a rounded score can change the choice")


def check_v1_flow(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare steps of the estimator, and the mel spectrogram of a prompt, which is computed on the CPU."""
    check_v1_estimator(checks, golden, networks)
    mel = networks.config.mel
    spectrogram = MelSpectrogram(
        mel.sample_rate_hz, mel.n_fft, mel.window_samples, mel.hop_samples, mel.bins, mel.fmin_hz, mel.fmax_hz
    )
    got = spectrogram(golden["prompt_audio"].cpu())
    checks.close(golden, "prompt_audio_mel", got.transpose(1, 2), FEATURES)


def check_v1_estimator(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare steps of the estimator."""
    estimator = _flow(networks).estimator
    for name in sorted({key.partition(".")[0] for key in golden if key.startswith("estimator_")}):
        x, mu, spk, cond, time = (golden[f"{name}.{key}"] for key in ("x", "mu", "spk", "cond", "time"))
        inputs = torch.cat([x, mu, spk[:, :, None].expand(-1, -1, x.shape[2]), cond], dim=1).transpose(1, 2)
        velocity = estimator(inputs, estimator.tables(time)[0])
        checks.close(golden, f"{name}.out", velocity.transpose(1, 2), NETWORK)


def check_v1_stream(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare every stage of overlapping parts: encoder, length regulator, solver, cross-fades, pitch and audio."""
    flow = _flow(networks)
    hift = networks.hift
    prompt_mel = golden["prompt_mel"]
    prompt_frames = prompt_mel.shape[1]
    spk = flow.speaker(golden["embedding"])
    known: Tensor | None = None
    held: Tensor | None = None
    fade: FadeState | None = None
    parts = sum(key.startswith("mel_") for key in golden)
    start = 0
    for part in range(parts):
        begin = HOP_TOKENS * part
        tokens = golden["tokens"][:, begin : begin + HOP_TOKENS + flow.dims.lookahead_tokens]
        heard = torch.cat([golden["prompt"], tokens], dim=1)
        checks.close(golden, f"encoded_{part}", flow.encoder(flow.input_embedding(heard)), NETWORK)
        mu = flow.mu(tokens, golden["prompt"], prompt_frames)
        checks.close(golden, f"regulated_{part}", mu, NETWORK)
        noise = flow.noise_at(prompt_frames, start, flow.dims.frames(tokens.shape[1]))
        mel, known = flow.part(tokens, golden["prompt"], prompt_mel, spk, noise, known)
        checks.close(golden, f"mel_{part}", mel.transpose(1, 2), MEL)
        checks.close(golden, f"known_{part}", known.transpose(1, 2), FEATURES)
        start += mel.shape[1] - flow.overlap_frames
        final = part == parts - 1
        mel = mel if held is None else fade_mel(mel, held)
        held = mel[:, -flow.overlap_frames :]
        new = (mel if final else mel[:, : -flow.overlap_frames]).transpose(1, 2)
        vocoded = new if fade is None else torch.cat([fade.mel, new], dim=2)
        checks.close(golden, f"vocoder_mel_{part}", vocoded, MEL)
        expected = golden[f"vocoder_mel_{part}"]  # the pitch and the audio are those of the recorded mel
        checks.close(golden, f"pitch_{part}", hift.f0_predictor(expected), PITCH_HZ, "Hz")
        given = expected if fade is None else expected[:, :, fade.mel.shape[2] :]
        draws = HashedNoise(torch.tensor([part], device=flow.device), normal=True)
        phase = golden[f"phase_{part}"] / hift.dims.frame_samples
        audio, fade = reference_fade(hift, given, fade, draws, final, phase)
        checks.wave(golden, f"speech_{part}", audio)


def check_v1_speech(checks: CheckList, golden: Golden, networks: Networks) -> None:
    """Compare text to audio at once, and speech tokens to streamed audio, with the reference's draws from a seed."""
    embedding = golden["embedding"][0]
    prompt_mel = golden["prompt_speech_feat"][0]
    flow_prompt = golden.ids("flow_prompt_speech_token")
    text = golden.ids("text")
    prompt_text = golden.ids("prompt_text")
    silent = prompt_mel[:0]
    requests = {
        "zero_shot": Request(
            text,
            embedding,
            prompt_text,
            golden.ids("llm_prompt_speech_token"),
            flow_prompt,
            prompt_mel,
            with_speaker=True,
        ),
        "instruct": Request(text, embedding, prompt_text, prompt_mel=silent),
        "conversion": Request((), embedding, flow_prompt=flow_prompt, prompt_mel=prompt_mel),
    }
    for mode, request in requests.items():
        is_conversion = mode == "conversion"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SPEECH_SEED)
            drawn = [] if is_conversion else list(V1Decoder(networks, request).decode(request))
            tokens = golden.ids("source") if is_conversion else drawn
            chunks = list(V1Pipeline(networks).render(request, tokens, stream=is_conversion))
        checks.ids(golden, f"{mode}.tokens", drawn)
        checks.ids(golden, f"{mode}.part_samples", [len(chunk.samples) for chunk in chunks])
        audio = torch.cat([chunk.samples for chunk in chunks])
        checks.wave(golden, f"{mode}.every_fifth_sample", audio, SAMPLE_STRIDE)


def _flow(networks: Networks) -> V1Flow:
    assert isinstance(networks.flow, V1Flow)
    return networks.flow
