"""Names for instructions that the models were trained with: dialects, emotions, loudness and pace.

``instruct: cantonese`` gives the same prompt as the Chinese sentence would. Anything that is no name is an instruction
in plain language.
"""

from __future__ import annotations

from tts_worker.engine.cosyvoice.bundle.config import V3

DIALECTS = {
    "cantonese": "广东话",
    "dongbei": "东北话",
    "gansu": "甘肃话",
    "guizhou": "贵州话",
    "henan": "河南话",
    "hubei": "湖北话",
    "hunan": "湖南话",
    "jiangxi": "江西话",
    "minnan": "闽南话",
    "ningxia": "宁夏话",
    "shaanxi": "陕西话",
    "shandong": "山东话",
    "shanghai": "上海话",
    "shanxi": "山西话",
    "sichuan": "四川话",
    "tianjin": "天津话",
    "yunnan": "云南话",
}
EMOTIONS = {"angry": "生气", "fearful": "恐惧", "happy": "开心", "sad": "伤心", "surprised": "惊讶"}
MANNERS = {
    "fast": "请用尽可能快地语速说一句话。",
    "slow": "请用尽可能慢地语速说一句话。",
    "loud": "请尽可能非常大声地说一句话。",
    "soft": "请非常轻声地说一句话。",
}


def instruction_of(text: str, family: str) -> str:
    """Return the instruction that ``text`` names, or ``text``."""
    name = text.strip().lower()
    if name in DIALECTS:
        return f"请用{DIALECTS[name]}表达。" if family == V3 else f"用{DIALECTS[name]}说这句话"
    if name in EMOTIONS:
        return f"请非常{EMOTIONS[name]}地说一句话。" if family == V3 else f"用{EMOTIONS[name]}的语气说这句话"
    return MANNERS.get(name, text)
