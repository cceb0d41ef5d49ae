"""Language detection by script, common words and explicit request; Chinese is never a default."""

from __future__ import annotations

import pytest
from tests.cases import each_case

from tts_worker.text.language import LanguageDetector, foreign_runs

V2 = ("zh", "en", "ja", "ko", "yue")
V3 = ("zh", "en", "ja", "ko", "yue", "de", "es", "fr", "it", "ru")


@each_case(
    ("text", "language"),
    [
        ("I paid $100 at 10:30.", "en"),
        ("$100", "en"),
        ("10:30", "en"),
        ("我有100元", "zh"),
        ("我用 Visual Studio Code 3 个小时", "zh"),
        ("I paid 100 for 北京 at ten", "en"),
        ("100円です", "ja"),
        ("東京まで100キロ", "ja"),
        ("100원 주세요", "ko"),
        ("Ich habe 3 Euro für den Bus", "de"),
        ("J'ai payé 3 euros pour le pain", "fr"),
        ("El tren sale a las 10:30 por la noche", "es"),
        ("Поезд в 10:30", "ru"),
        ("OK 5", "en"),
    ],
)
def test_segment_language_is_detected(text: str, language: str) -> None:
    assert LanguageDetector(V3).detect(text) == language


def test_only_languages_of_the_voice_are_detected() -> None:
    assert LanguageDetector(V2).detect("Ich habe 3 Euro für den Bus") == "en"


def test_neutral_text_follows_the_previous_segment() -> None:
    detector = LanguageDetector(V2)
    assert [detector.detect(text) for text in ("我在", "10:30", "I paid", "$5")] == ["zh", "zh", "en", "en"]


@each_case(
    ("texts", "language"),
    [
        (("Сегодня тепло.", "25 °C."), "ru"),
        (("오늘은 덥습니다.", "25 °C."), "ko"),
        (("Hoy hace calor.", "Hay 5 km.", "25 km/h"), "es"),
        (("Купил телефон:", "iPhone 15."), "ru"),
        (("今日は", "iPhone 15 Pro"), "ja"),
        (("Я дома.", "I have 5 apples."), "en"),
        (("¿Cuándo?", "12:30"), "es"),
        (("Die Straße heißt so.", "Nummer 5"), "de"),
        (("Das Taxi kostet", "5 EUR"), "de"),
    ],
)
def test_text_without_evidence_follows_what_precedes(texts: tuple[str, ...], language: str) -> None:
    detector = LanguageDetector(("mul",))
    assert [detector.detect(text) for text in texts][-1] == language


@pytest.mark.parametrize(
    "text", ["No, 5 apples.", "Do 5 push-ups as fast.", "Die 5 times.", "25 °C", "Call me at 5.", "On all 5 sides"]
)
def test_english_is_not_taken_for_another_language(text: str) -> None:
    assert LanguageDetector(("mul",)).detect(text) == "en"


@each_case(
    ("languages", "explicit", "text", "language"),
    [
        (V2, "zh-CN", "10:30", "zh"),
        (V2, "en-US", "10:30", "en"),
        (V2, "zh", "I paid $100", "en"),
        (V2, "en", "我有100元", "zh"),
        (V3, "de", "Um 10:30 in Berlin", "de"),
        (V3, "ja", "東京都 10:30", "ja"),
        (V3, "yue", "我有100元", "yue"),
        (("zh",), None, "10:30", "zh"),
        (("zh", "yue"), None, "10:30", None),
        (("de",), None, "10:30 am Bahnhof", "de"),
        (("en-us",), None, "5", "en"),
        (("mul",), None, "5", "en"),
        (("mul",), "ru", "25 °C.", "ru"),
        (("mul",), "ru", "iPhone 15", "ru"),
        (("mul",), "uk", "Поїзд о 10:30", "uk"),
        (("ja", "ko"), None, "25 °C", "ja"),
        ((), None, "", "en"),
    ],
)
def test_explicit_language_applies_if_the_script_allows(
    languages: tuple[str, ...], explicit: str | None, text: str, language: str | None
) -> None:
    assert LanguageDetector(languages, explicit).detect(text) == language


@each_case(
    ("text", "languages", "foreign"),
    [
        ("你好，世界。", ["en"], ["你好", "世界"]),
        ("Привет, мир и всё!", ["en", "zh"], ["Привет", "мир и всё"]),
        ("안녕", ["zh", "ja"], ["안녕"]),
        ("ひらがな", ["zh"], ["ひらがな"]),
        ("你好", ["en", "yue"], []),
        ("Привет", ["sr-RS"], []),
        ("你好", ["mul"], []),
        ("你好", [], []),
        ("Hello你好world", ["en"], ["你好"]),
        ("12号 5", ["en"], ["号"]),
        ("Hello.", ["zh"], []),
        ("Ngày tốt, Łódź, ﬁne, 𝐀", ["en"], []),
        ("η γάτα", ["en"], ["η γάτα"]),
        ("γάτα", ["el"], []),
        ("π α Δt Ω µ", ["en"], []),
        ("مَرحبا بكم", ["en"], ["مَرحبا بكم"]),
        ("مرحبا بكم", ["ar"], []),
        ("سلام", ["fa"], []),
        ("שָׁלוֹם", ["en", "zh"], ["שָׁלוֹם"]),
        ("नमस्ते।", ["en"], ["नमस्ते"]),
        ("สวัสดีครับ ฿5", ["en"], ["สวัสดีครับ"]),
        ("สวัสดี", ["th"], []),
        ("தமிழ் ქართული አማርኛ", ["en"], ["தமிழ் ქართული አማርኛ"]),
        ("١٢ 🎉 … ™", ["en"], []),
    ],
)
def test_text_of_other_scripts_is_found(text: str, languages: list[str], foreign: list[str]) -> None:
    assert [text[start:end] for start, end in foreign_runs(text, languages)] == foreign


def test_hostile_mixture_of_scripts_takes_linear_time() -> None:
    runs = foreign_runs("П " * 100_000 + "!" + "你a" * 100_000 + "α " * 100_000, ["en"])
    assert len(runs) == 100_001
