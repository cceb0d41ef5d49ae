"""Score a CPU voice: word error rate, quality score, loudness and speed, as one JSON object.

    python -m tools.voice_quality --engine kokoro --voice kumo [--mandarin MODEL]

The sentences, the recognizer and the score are those of the quality tests (extra ``quality``). With ``--mandarin``, a
folder with a multilingual Whisper model for faster-whisper, also the character and syllable errors of Mandarin
sentences: the recognizer confuses characters of the same sound, so the syllables count.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from time import perf_counter, process_time
from typing import Any

import numpy as np
from tests.quality.judge import Judge, missing_reason
from tests.quality.sentences import SENTENCES

from tts_worker.audio.loudness import lufs_for_gain
from tts_worker.audio.pcm import to_float
from tts_worker.audio.resampler import Resampler
from tts_worker.engine.factory import EngineFactory
from tts_worker.engine.shell import EngineShell
from tts_worker.settings import load_settings
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Segment, SynthesisParams, UtteranceKey

MANDARIN = (
    "今天天气很好，我们去公园散步吧。",
    "您好，请问有什么可以帮您？",
    "这趟列车将在十分钟后到达北京西站。",
    "人工智能正在改变我们的生活方式。",
    "请把会议时间改到星期三下午三点。",
    "他昨天买了一本关于中国历史的书。",
    "如果您想取消订单，请先登录您的账户。",
    "银行的工作人员说，这张卡已经过期了。",
)
_OTHERS = re.compile(r"[^\u4e00-\u9fff]")


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["hibari", "kokoro"], default="hibari")
    parser.add_argument("--voice", default="heart")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), help="English sentences (default: all)")
    parser.add_argument("--mandarin", metavar="MODEL", help="folder of a multilingual recognizer")
    args = parser.parse_args()
    if reason := missing_reason():
        parser.error(reason)
    settings = load_settings(None, {"engines": {args.engine: {"kind": args.engine}}}, replaced=("engines",))
    engine = EngineFactory(settings.engines[args.engine])()
    assert isinstance(engine, EngineShell)
    engine.warm_up()
    speak = Speaker(engine, args.voice)
    clips = [speak(text) for text in SENTENCES[: args.sentences]]
    result: dict[str, Any] = {
        "voice": args.voice,
        "audio_s": round(speak.audio_s, 1),
        "real_time_factor": round(speak.wall_s / speak.audio_s, 3),
        "processor_s_per_audio_s": round(speak.processor_s / speak.audio_s, 3),
        "loudness_lufs": round(lufs_for_gain(b"".join(clips), SAMPLE_RATE_HZ, settings.session.loudness or -16.0), 1),
    }
    judge = Judge()
    result["word_error_rate"] = round(judge.wer(SENTENCES[: args.sentences], [judge.transcribe(c) for c in clips]), 3)
    result["mos"] = round(float(np.mean([judge.mos(clip) for clip in clips])), 2)
    if args.mandarin:
        result |= mandarin_errors(args.mandarin, [speak(text) for text in MANDARIN])
    print(json.dumps(result))


class Speaker:
    """Speaks texts with one voice and sums up their length and cost."""

    def __init__(self, engine: EngineShell[Any], voice: str) -> None:
        self._engine = engine
        self._params = SynthesisParams(voice)
        self.audio_s = self.wall_s = self.processor_s = 0.0

    def __call__(self, text: str) -> bytes:
        wall_s, processor_s = perf_counter(), process_time()
        pcm = self._engine.speak(UtteranceKey("quality", 1), self._params, [Segment.whole(text)])
        self.wall_s += perf_counter() - wall_s
        self.processor_s += process_time() - processor_s
        self.audio_s += len(pcm) / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ
        return pcm


def mandarin_errors(model: str, clips: Sequence[bytes]) -> dict[str, float]:
    """Return the rates of wrong characters and of wrong syllables, tones apart."""
    import jiwer
    from faster_whisper import WhisperModel
    from pypinyin import lazy_pinyin

    recognizer = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=1)
    heard = []
    for clip in clips:
        resampler = Resampler(SAMPLE_RATE_HZ, 16_000)
        samples = to_float(resampler.process(clip) + resampler.flush())
        segments, _ = recognizer.transcribe(samples, language="zh", beam_size=1, temperature=0.0)
        heard.append(_OTHERS.sub("", "".join(segment.text for segment in segments)))
    said = [_OTHERS.sub("", text) for text in MANDARIN]

    def error_rate(units: Callable[[str], Sequence[str]]) -> float:
        return round(jiwer.wer([" ".join(units(t)) for t in said], [" ".join(units(t)) or "-" for t in heard]), 3)

    return {"character_error_rate": error_rate(list), "syllable_error_rate": error_rate(lazy_pinyin)}


if __name__ == "__main__":
    main()
