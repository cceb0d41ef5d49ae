"""Numbers, dates, money and units of eight languages in words: sentences, source ranges, what is left."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import pytest

from tests.cases import each_case
from tts_worker.features.languages import language_readers
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading import verbalizer
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Segment

DATA = Path(__file__).parents[2] / "data" / "reading"
SENTENCES = {
    "es": [
        ("Tiene 21 años y 1 hijo.", "Tiene veintiún años y un hijo."),
        ("Hay 200 personas y 21 mujeres.", "Hay doscientas personas y veintiuna mujeres."),
        (
            "El 3 de mayo de 2026 a las 12:30.",
            "El tres de mayo de dos mil veintiséis a las doce y treinta.",
        ),
        ("Cuesta 12,50 € o $5.", "Cuesta doce euros con cincuenta o cinco dólares."),
        ("Debe 1.234,56 €.", "Debe mil doscientos treinta y cuatro euros con cincuenta y seis."),
        ("Gana 2,5 M€ y yo 1.000.000 €.", "Gana dos coma cinco millones de euros y yo un millón de euros."),
        ("Hace -5 °C y 25 % de humedad.", "Hace menos cinco grados Celsius y veinticinco por ciento de humedad."),
        ("Va a 120 km/h con 0,5 l.", "Va a ciento veinte kilómetros por hora con cero coma cinco litros."),
        ("El 1.º, la 2ª planta y el 3er piso.", "El primero, la segunda planta y el tercer piso."),
        ("Su código es 482913.", "Su código es cuatro ocho dos, nueve uno tres."),
        ("Llame al 912 345 678.", "Llame al nueve uno dos, tres cuatro cinco, seis siete ocho."),
        ("Son 5-10 kg a 5 €/kg.", "Son cinco a diez kilogramos a cinco euros por kilogramo."),
        ("La versión 2.4.1 y 2 1/2 tazas.", "La versión dos punto cuatro punto uno y dos y medio tazas."),
        ("Así 5 - 3 = 2 y ganó 3-1.", "Así cinco menos tres es igual a dos y ganó tres a uno."),
    ],
    "fr": [
        ("Il a 99 ans et 71 euros.", "Il a quatre-vingt-dix-neuf ans et soixante et onze euros."),
        (
            "Le 1er mai 2026 à 12h30.",
            "Le premier mai deux mille vingt-six à douze heures trente.",
        ),
        ("Cela coûte 12,50 €.", "Cela coûte douze euros cinquante."),
        ("Il doit 1 234,56 €.", "Il doit mille deux cent trente-quatre euros cinquante-six."),
        ("De 9h à 21 heures, pendant 1 heure.", "De neuf heures à vingt et une heures, pendant une heure."),
        ("Il fait -5,5 °C et 25 %.", "Il fait moins cinq virgule cinq degrés Celsius et vingt-cinq pour cent."),
        ("Appelez le 06 12 34 56 78.", "Appelez le zéro six, un deux, trois quatre, cinq six, sept huit."),
        ("Au 2e étage, la 1re fois.", "Au deuxième étage, la première fois."),
        ("Votre code est 4829.", "Votre code est quatre huit deux neuf."),
        ("Il y a 80 chaises et 200 pages.", "Il y a quatre-vingts chaises et deux cents pages."),
        ("Gagnez 3 M€ ou 10 % de 200.", "Gagnez trois millions d'euros ou dix pour cent de deux cents."),
        ("Il faut 0,05 g et 3,14 m.", "Il faut zéro virgule zéro cinq gramme et trois virgule quatorze mètres."),
    ],
    "de": [
        ("Er ist 21 Jahre alt, in 1 Stunde.", "Er ist einundzwanzig Jahre alt, in einer Stunde."),
        (
            "Am 3. Mai 2026 um 12:30 Uhr.",
            "Am dritten Mai zweitausendsechsundzwanzig um zwölf Uhr dreißig.",
        ),
        ("Es kostet 12,50 €.", "Es kostet zwölf Euro fünfzig."),
        ("Es sind 1.234,56 €.", "Es sind eintausendzweihundertvierunddreißig Euro sechsundfünfzig."),
        ("Bei -5 °C und 20 % Rabatt.", "Bei minus fünf Grad Celsius und zwanzig Prozent Rabatt."),
        ("Er fährt 120 km/h.", "Er fährt einhundertzwanzig Kilometer pro Stunde."),
        ("Im 3. Stock, die 2. Frage.", "Im dritten Stock, die zweite Frage."),
        ("Ihr Code lautet 4829.", "Ihr Code lautet vier acht zwei neun."),
        ("Tel. 030 1234567.", "Telefon null drei null, eins zwei drei, vier fünf sechs sieben."),
        ("Das dauert 5-10 Minuten.", "Das dauert fünf bis zehn Minuten."),
        ("Der Umsatz: 1,5 Mio. € und 1 Euro.", "Der Umsatz: eins Komma fünf Millionen Euro und ein Euro."),
        ("Version 17.4 vom 03.05.2026.", "Version siebzehn Punkt vier vom dritten Mai zweitausendsechsundzwanzig."),
        ("Noch 1,2 kg, 1 Person.", "Noch eins Komma zwei Kilogramm, eine Person."),
    ],
    "it": [
        ("Ha 21 anni e 118 libri.", "Ha ventuno anni e centodiciotto libri."),
        ("Il 1° maggio 2026 alle 12:30.", "Il primo maggio duemilaventisei alle dodici e trenta."),
        ("Costa 12,50 €.", "Costa dodici euro e cinquanta."),
        ("Sono 1.234,56 €.", "Sono milleduecentotrentaquattro euro e cinquantasei."),
        ("Per 1 euro e 1 studente.", "Per un euro e uno studente."),
        ("Oggi -5 °C e 25%.", "Oggi meno cinque gradi Celsius e venticinque per cento."),
        ("Va a 120 km/h.", "Va a centoventi chilometri orari."),
        ("Il 1º posto, la 3ª volta.", "Il primo posto, la terza volta."),
        ("Il codice è 4829.", "Il codice è quattro otto due nove."),
        ("Servono 5-10 kg.", "Servono cinque a dieci chilogrammi."),
        ("Chiami il 06 1234 5678.", "Chiami il zero sei, uno due tre quattro, cinque sei sette otto."),
        ("Alle ore 9:00 e 3,5 km.", "Alle ore nove e tre virgola cinque chilometri."),
    ],
    "pt": [
        ("Tem 21 anos e 2 filhas.", "Tem vinte e um anos e duas filhas."),
        ("Em 3 de maio de 2026 às 12h30.", "Em três de maio de dois mil e vinte e seis às doze e trinta."),
        ("Custa R$ 12,50.", "Custa doze reais e cinquenta."),
        ("São 1.234,56 €.", "São mil duzentos e trinta e quatro euros e cinquenta e seis."),
        ("Faz -5 °C e 25%.", "Faz menos cinco graus Celsius e vinte e cinco por cento."),
        ("Anda a 120 km/h.", "Anda a cento e vinte quilômetros por hora."),
        ("Ligue (11) 91234-5678.", "Ligue um um, nove um dois três quatro, cinco seis sete oito."),
        ("O 1º lugar, a 2ª vez.", "O primeiro lugar, a segunda vez."),
        ("Seu código é 4829.", "Seu código é quatro oito dois nove."),
        ("São 200 pessoas.", "São duzentas pessoas."),
        ("Leve 5-10 kg ou 1,5 l.", "Leve cinco a dez quilogramas ou um vírgula cinco litro."),
        ("Em 1999 eram 16.", "Em mil novecentos e noventa e nove eram dezesseis."),
    ],
    "ja": [
        ("3時30分に会いましょう。", "三時三十分に会いましょう。"),
        ("12:30に出ます。", "十二時三十分に出ます。"),
        ("2026年5月3日です。", "二千二十六年五月三日です。"),
        ("1,234円です。", "千二百三十四円です。"),
        ("気温は-5°C、湿度25%です。", "気温はマイナス摂氏五度、湿度二十五パーセントです。"),
        ("速さは120km/hです。", "速さは時速百二十キロメートルです。"),
        ("電話は03-1234-5678です。", "電話はゼロ三、一二三四、五六七八です。"),
        ("暗証番号は4829です。", "暗証番号は四八二九です。"),
        ("5~10分かかります。", "五から十分かかります。"),
        ("円周率は3.14です。", "円周率は三点一四です。"),
        ("12345人います。", "一万二千三百四十五人います。"),
        ("¥500と$5、3/4です。", "五百円と五ドル、四分の三です。"),
        ("１２３円と5万円です。", "百二十三円と五万円です。"),
    ],
    "ko": [
        ("3시 30분에 만나요.", "세 시 삼십 분에 만나요."),
        ("12:30에 출발합니다.", "열두 시 삼십 분에 출발합니다."),
        ("2026년 6월 3일입니다.", "이천이십육 년 유월 삼 일입니다."),
        ("1,234원입니다.", "천이백삼십사 원입니다."),
        ("기온은 -5°C, 습도 25%입니다.", "기온은 마이너스 섭씨 오 도, 습도 이십오 퍼센트입니다."),
        ("시속 120km/h로 갑니다.", "시속 백이십 킬로미터로 갑니다."),
        ("전화는 010-1234-5678입니다.", "전화는 공 일 공, 일 이 삼 사, 오 육 칠 팔입니다."),
        ("번호는 4829입니다.", "번호는 사 팔 이 구입니다."),
        ("5~10분 걸려요.", "오에서 십 분 걸려요."),
        ("사과 3개와 20살 2명.", "사과 세 개와 스무 살 두 명."),
        ("₩5,000과 $5입니다.", "오천 원과 오 달러입니다."),
        ("1번째, 3개월, 3/4.", "첫 번째, 삼 개월, 사분의 삼."),
        ("값은 3.14입니다.", "값은 삼 점 일 사입니다."),
    ],
    "ru": [
        ("Ему 21 год, ей 2 года.", "Ему двадцать один год, ей два года."),
        (
            "Встреча 3 мая 2026 года в 12:30.",
            "Встреча третьего мая две тысячи двадцать шестого года в двенадцать тридцать.",
        ),
        ("Это 2 рубля, а не 5 рублей.", "Это два рубля, а не пять рублей."),
        ("Цена 12,50 руб. за штуку.", "Цена двенадцать рублей пятьдесят копеек за штуку."),
        ("Итого 1 234,56 ₽.", "Итого одна тысяча двести тридцать четыре рубля пятьдесят шесть копеек."),
        ("Там -5 °C, влажность 25 %.", "Там минус пять градусов Цельсия, влажность двадцать пять процентов."),
        ("Едет 120 км/ч.", "Едет сто двадцать километров в час."),
        (
            "Звоните +7 (495) 123-45-67.",
            "Звоните плюс семь, четыре девять пять, один два три, четыре пять, шесть семь.",
        ),
        ("На 1-й этаж, до 5-го.", "На первый этаж, до пятого."),
        ("Ваш код 4829.", "Ваш код четыре восемь два девять."),
        ("Всего 1,5 млн руб.", "Всего одна целая пять десятых миллиона рублей"),
        ("Через 2 минуты и 1 минута.", "Через две минуты и одна минута."),
        ("Весит 1,5 кг, дом № 5.", "Весит одна целая пять десятых килограмма, дом номер пять."),
        ("Это было в 2026 году, в 9:05.", "Это было в две тысячи двадцать шестом году, в девять ноль пять."),
    ],
}
SIGNS = re.compile(r"[\d%‰°€$£¥₽₩₹+=<>≤≥±×÷−≈~&@#№§*/²³½¼¾⅓⅔^_|\\]")


def segments(text: str, language: str, explicit: str | None = None) -> list[Segment]:
    pipeline = TextPipeline(TextOptions(language=language), verbalizer=Verbalizer((language,), explicit))
    return [*pipeline.feed(text), *pipeline.end()]


def read(text: str, language: str) -> str:
    return ("" if language == "ja" else " ").join(segment.text for segment in segments(text, language))


EVERYDAY = [
    line.split("\t") for line in (DATA / "everyday_sentences.tsv").read_text("utf-8").splitlines() if line[0] != "#"
]
CASES = [(language, *pair) for language, pairs in SENTENCES.items() for pair in pairs]


@each_case(("language", "written", "spoken"), CASES)
def test_sentence_is_read_in_its_language(language: str, written: str, spoken: str) -> None:
    assert read(written, language) == spoken


@each_case(("language", "written", "spoken"), CASES)
def test_no_digit_or_sign_is_left(language: str, written: str, spoken: str) -> None:
    assert not SIGNS.search(read(written, language))


@each_case(("language", "written", "spoken"), EVERYDAY)
def test_everyday_sentence_is_read_in_its_language(language: str, written: str, spoken: str) -> None:
    """Where a sentence is cut after an abbreviation is not the matter of reading: its marks do not count."""
    assert words(read(written, language)) == words(spoken)


def words(text: str) -> str:
    return re.sub("[.,]", "", text).casefold()


@each_case(
    ("language", "written", "spoken"),
    [
        ("es", "Ve a la sala V, opción C.", "Ve a la sala V, opción C."),
        ("fr", "Le train de 8 h. C'est lui.", "Le train de huit heures. C'est lui."),
        ("de", "Mit Ludwig XIV. und Ludwigs XV. Hof.", "Mit Ludwig dem Vierzehnten und Ludwigs des Fünfzehnten Hof."),
        (
            "de",
            "Ihre 2. Frage, ein 3. Versuch.",
            "Ihre zweite Frage, ein dritter Versuch.",
        ),
        ("de", "Königin Elisabeth II. lachte.", "Königin Elisabeth die Zweite lachte."),
        ("it", "L'XI secolo, la IV edizione.", "L'undicesimo secolo, la quarta edizione."),
        ("pt", "A vitamina D e o plano B.", "A vitamina D e o plano B."),
        ("ru", "К 5 мая, на 5 мая, с 5 мая.", "К пятому мая, на пятое мая, с пятого мая."),
        (
            "ru",
            "До 21 км, без 1 минуты.",
            "До двадцати одного километра, без одной минуты.",
        ),
        ("ru", "С 21 другом, в 3 городах, 5 рублям.", "С двадцатью одним другом, в трёх городах, пяти рублям."),
        (
            "ru",
            "С 1 по 15 мая, более 1 млн рублей, до 5 тыс. человек.",
            "С первого по пятнадцатое мая, более одного миллиона рублей, до пяти тысяч человек.",
        ),
        ("ru", "До 100,41 ₽.", "До ста рублей сорока одной копейки."),
        ("ru", "В 1 классе.", "В одном классе."),
        ("de", "Am 1. und 2. Mai, in den 90er Jahren.", "Am ersten und zweiten Mai, in den neunziger Jahren."),
        ("fr", "M. et Mme Dupont.", "Monsieur et Madame Dupont."),
        ("es", "Son 1/2 kg, 2 1/2 kg y 3 dl.", "Son medio kilogramo, dos y medio kilogramos y tres decilitros."),
        ("ja", "1/2kgです。", "二分の一キログラムです。"),
        ("pt", "Tenho 1 irmã e 2 maçãs.", "Tenho uma irmã e duas maçãs."),
        ("pt", "Vieram 2000 pessoas.", "Vieram duas mil pessoas."),
        ("pt", "São 202 páginas.", "São duzentas e duas páginas."),
        ("ru", "Не больше 500 ₽ и 11 минут.", "Не больше пятисот рублей и одиннадцать минут."),
    ],
)
def test_case_and_gender_of_numbers(language: str, written: str, spoken: str) -> None:
    assert words(read(written, language)) == words(spoken)


@each_case("language", sorted(SENTENCES))
def test_time_with_seconds_has_the_words_of_seconds(language: str) -> None:
    assert read("10:30:15", language).endswith(read("15 s", language).split()[-1])


def test_year_of_german_is_read_as_one() -> None:
    assert read("Seit 1999.", "de") == "Seit neunzehnhundertneunundneunzig."


@each_case("language", sorted(SENTENCES))
def test_words_keep_the_ranges_of_the_text(language: str) -> None:
    for written, _ in SENTENCES[language]:
        ranges = [
            (word.start_char, word.end_char) for part in segments(written, language) for word in spoken_words(part)
        ]
        assert ranges == sorted(ranges)
        assert all(written[start:end].strip() for start, end in ranges)


@each_case("language", sorted(SENTENCES))
def test_odd_text_leaves_no_digit_or_sign(language: str) -> None:
    for odd in (
        "C++ 5*3",
        "A17 QX7R2M",
        "1,2,3",
        "1.2.3.4",
        "00482",
        "7/9",
        "x²",
        "①",
        "5 ±1",
        "2026-13-45",
        "25:99",
        "#5",
    ):
        assert not SIGNS.search(read(f"{odd}.", language)), odd


@each_case("language", sorted(SENTENCES))
def test_tags_and_plain_words_stay(language: str) -> None:
    rewrites = language_readers.rewrites_in(language)
    assert rewrites is not None
    assert rewrites("<strong>a</strong> [laughter] well-known — a, b.", 0) == []


@pytest.mark.parametrize(
    ("texts", "spoken"),
    [
        ("Сегодня тепло. 25 °C.", "двадцать пять градусов Цельсия."),
        ("오늘은 덥습니다. 25 °C.", "섭씨 이십오 도."),
        ("Es ist sehr warm. 25 °C.", "fünfundzwanzig Grad Celsius."),
    ],
)
def test_segment_of_digits_follows_the_text_before(texts: str, spoken: str) -> None:
    pipeline = TextPipeline(verbalizer=Verbalizer(("mul",)))
    parts = [*pipeline.feed(texts), *pipeline.end()]
    assert parts[-1].text == spoken


def test_text_passes_where_the_libraries_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caches = (language_readers.rewrites_in, language_readers._is_installed, verbalizer.rewrites_of)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setattr(language_readers, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert read("Cuesta 5 €.", "es") == "Cuesta 5 €."
        assert read("Es kostet 5 €.", "de") == "Es kostet 5 €."
    assert len(caplog.records) == 1
    assert "tts-worker[languages]" in caplog.text
    for cached in caches:
        cached.cache_clear()


@each_case("unit", ["1", "1.1,", "1 234 ", "-5", "+1 ", "12:3", "3/", "PIN ", "€", "1-2 ", "(0"])
def test_hostile_text_is_read_in_linear_time(unit: str) -> None:
    def seconds(length: int) -> float:
        rewrites = language_readers.rewrites_in("de")
        assert rewrites is not None
        text = (unit * length)[:length]
        start = time.process_time()
        rewrites(text, 0)
        return time.process_time() - start

    seconds(1000)
    assert seconds(10_000) < 25 * max(0.01, seconds(1_000))
