"""Words of eight languages that num2words and CLDR lack, by primary tag."""

from __future__ import annotations


def _entries(text: str) -> dict[str, str]:
    return dict(entry.split(maxsplit=1) for entry in text.split("|"))


def _split(text: str) -> list[str]:
    return text.split()


SIGNS = {
    language: _entries(text)
    for language, text in {
        "es": ". punto|, coma|- menos|– a|+ más|= es igual a|× por|÷ entre|/ por|⁄ sobre|: a|& y|@ arroba|# número|"
        "< menos de|> más de|≤ como máximo|≥ al menos|± más menos|≈ unos|§ párrafo|² al cuadrado|³ al cubo|_ y|"
        "½ medio|¼ un cuarto|¾ tres cuartos|⅓ un tercio|⅔ dos tercios",
        "fr": ". point|, virgule|- moins|– à|+ plus|= égale|× fois|÷ divisé par|/ par|⁄ sur|: à|& et|@ arobase|"
        "# numéro|< moins de|> plus de|≤ au plus|≥ au moins|± plus ou moins|≈ environ|§ paragraphe|² au carré|"
        "³ au cube|_ et|½ un demi|¼ un quart|¾ trois quarts|⅓ un tiers|⅔ deux tiers",
        "de": ". Punkt|, Komma|- minus|– bis|+ plus|= gleich|× mal|÷ geteilt durch|/ pro|⁄ durch|: zu|& und|@ at|"
        "# Nummer|< weniger als|> mehr als|≤ höchstens|≥ mindestens|± plus minus|≈ etwa|§ Paragraf|² hoch zwei|"
        "³ hoch drei|_ und|½ ein halb|¼ ein Viertel|¾ drei Viertel|⅓ ein Drittel|⅔ zwei Drittel",
        "it": ". punto|, virgola|- meno|– a|+ più|= uguale a|× per|÷ diviso|/ al|⁄ su|: a|& e|@ chiocciola|"
        "# numero|< meno di|> più di|≤ al massimo|≥ almeno|± più o meno|≈ circa|§ paragrafo|² al quadrato|"
        "³ al cubo|_ e|½ mezzo|¼ un quarto|¾ tre quarti|⅓ un terzo|⅔ due terzi",
        "pt": ". ponto|, vírgula|- menos|– a|+ mais|= igual a|× vezes|÷ dividido por|/ por|⁄ sobre|: a|& e|"
        "@ arroba|# número|< menos de|> mais de|≤ no máximo|≥ no mínimo|± mais ou menos|≈ cerca de|§ parágrafo|"
        "² ao quadrado|³ ao cubo|_ e|½ meio|¼ um quarto|¾ três quartos|⅓ um terço|⅔ dois terços",
        "ja": ". 点|, 点|- マイナス|– から|+ プラス|= イコール|× かける|÷ 割る|/ 毎|⁄ 分の|: 対|& アンド|"
        "@ アットマーク|# ナンバー|< 未満|> 超|≤ 以下|≥ 以上|± プラスマイナス|≈ 約|§ 第|² の二乗|³ の三乗|_ と|"
        "½ 二分の一|¼ 四分の一|¾ 四分の三|⅓ 三分の一|⅔ 三分の二",
        "ko": ". 점|, 점|- 마이너스|– 에서|+ 더하기|= 는|× 곱하기|÷ 나누기|/ 당|⁄ 분의|: 대|& 앤|@ 골뱅이|# 번호|"
        "< 미만|> 초과|≤ 이하|≥ 이상|± 플러스마이너스|≈ 약|§ 제|² 제곱|³ 세제곱|_ 와|½ 이분의 일|¼ 사분의 일|"
        "¾ 사분의 삼|⅓ 삼분의 일|⅔ 삼분의 이",
        "ru": ". точка|, запятая|- минус|– —|+ плюс|= равно|× умножить на|÷ разделить на|/ за|⁄ дробь|: к|& и|"
        "@ собака|# номер|< меньше|> больше|≤ не больше|≥ не меньше|± плюс-минус|≈ примерно|§ параграф|"
        "² в квадрате|³ в кубе|_ и|½ одна вторая|¼ одна четвёртая|¾ три четвёртых|⅓ одна третья|⅔ две третьих",
    }.items()
}
"""Decimal mark, minus "-", range "–", rate "/", fraction "⁄", ratio ":"; "_" joins a whole number and a fraction."""

MINOR_UNITS = {
    "es": ("con", {"EUR": "céntimo céntimos", "USD": "centavo centavos", "BRL": "centavo centavos"}),
    "fr": ("", {"EUR": "centime centimes", "USD": "cent cents", "CHF": "centime centimes"}),
    "de": ("", {"EUR": "Cent Cent", "USD": "Cent Cent", "CHF": "Rappen Rappen"}),
    "it": ("e", {"EUR": "centesimo centesimi", "USD": "centesimo centesimi", "CHF": "centesimo centesimi"}),
    "pt": ("e", {"EUR": "cêntimo cêntimos", "USD": "centavo centavos", "BRL": "centavo centavos"}),
    "ja": ("", {"EUR": "セント セント", "USD": "セント セント"}),
    "ko": ("", {"EUR": "센트 센트", "USD": "센트 센트"}),
    "ru": ("", {"EUR": "цент цента центов", "USD": "цент цента центов", "RUB": "копейка копейки копеек"}),
}
"""The word before the minor unit, and its forms by plural category: one, (few,) other."""

MAGNITUDES = {
    "es": _entries("mil mil|M millón millones"),
    "fr": _entries("mille mille|M million millions|Md milliard milliards|Mds milliard milliards"),
    "de": _entries("Tsd. tausend|Mio. Million Millionen|Mrd. Milliarde Milliarden"),
    "it": _entries("mila mila|mln milione milioni|mld miliardo miliardi"),
    "pt": _entries("mil mil|mi milhão milhões|bi bilhão bilhões"),
    "ja": _entries("万 万|億 億"),
    "ko": _entries("만 만|억 억"),
    "ru": _entries("тыс. тысяча тысячи тысяч|млн миллион миллиона миллионов|млрд миллиард миллиарда миллиардов"),
}
"""Abbreviation -> forms by plural category."""

CURRENCIES = _entries(
    "€ EUR|$ USD|US$ USD|£ GBP|¥ JPY|₽ RUB|₩ KRW|₹ INR|R$ BRL|руб. RUB|руб RUB|р. RUB|"
    + "|".join(f"{code} {code}" for code in _split("EUR USD GBP JPY CNY KRW RUB BRL CHF MXN INR"))
)

UNITS = _split(
    "length-kilometer length-meter length-centimeter length-millimeter speed-kilometer-per-hour speed-meter-per-second "
    "temperature-celsius temperature-fahrenheit angle-degree mass-kilogram mass-gram mass-milligram mass-microgram "
    "mass-tonne mass-pound volume-liter volume-milliliter volume-centiliter volume-cubic-meter area-square-meter "
    "area-square-kilometer area-square-centimeter area-hectare power-watt power-kilowatt power-megawatt electric-volt "
    "energy-kilowatt-hour energy-kilocalorie frequency-hertz frequency-kilohertz frequency-megahertz "
    "frequency-gigahertz digital-kilobyte digital-megabyte digital-gigabyte digital-terabyte digital-megabit "
    "digital-gigabit duration-hour duration-minute duration-second duration-millisecond pressure-hectopascal "
    "pressure-bar concentr-percent concentr-permille"
)
"""CLDR names of units. Their symbols are CLDR's short forms in English and in the language."""

CODE_WORDS = {
    "es": "códigos?|pin|claves?|contraseña|tel[eé]fono|tel|pedido|reserva|tarjeta|cuenta|móvil",
    "fr": "codes?|pin|mot de passe|téléphone|tél|commande|réservation|carte|compte",
    "de": r"\w{0,20}code|pin|tan|passwort|telefon\w{0,8}|tel|\w{0,20}nummer|postleitzahl|plz",
    "it": "codici?|codice|pin|password|telefono|tel|ordine|prenotazione|carta|conto|cap",
    "pt": "códigos?|pin|senha|telefone|tel|pedido|reserva|cartão|conta|cep",
    "ja": "コード|番号|pin|パスワード|電話",
    "ko": "코드|번호|pin|비밀번호|전화",
    "ru": r"код\w{0,3}|пин|пин-код|пароль|телефон\w{0,2}|тел|заказ\w?|номер\w{0,2}|индекс",
}
"""What a number of three digits or more after it, with ``CODE_LINKS`` between, is read digit by digit."""

CODE_LINKS = (
    "es|est|ist|lautet|è|é|is|de verificación|de confirmação|de confirmation|di verifica|número|numéro|numero|nummer|"
    "n\\.º|nº|no|nr|は|が|은|는|이|가|номер|подтверждения"
)

PHONE = (
    r"\+\d{1,4}(?:[ /()-]{1,3}\d{1,12}){0,8}(?!\d)|\(?\d{2,5}\) ?[/-]? ?\d{2,12}(?:[ -]\d{2,4}){0,4}(?!\d)"
    r"|(?<![\d.,])0\d{1,5}(?:(?: ?[/-] ?|[ .])\d{2,9}){1,5}(?!\d)"
    r"|(?<![\d.,])(?!\d{1,3}(?: \d{3})+(?!\d| \d))\d{2,4}(?:[ -]\d{2,4}){3,6}(?![\d.,]?\d)"
)
PHONES = {
    "es": r"|(?<![\d.,] )[679]\d\d(?: \d{3}){2}(?! ?\d)",
    "pt": r"|(?<![\d.,] )9?\d{4}-\d{4}(?!\d)",
    "ko": r"|1[5-9]\d\d-\d{4}(?!\d)",
    "ru": r"|8 ?\(?\d{3}\)? ?\d{3}[ -]\d\d[ -]\d\d(?!\d)",
}
"""Telephone and card numbers everywhere, and those of one language's countries."""

TIMES = {
    "es": ("{h} y {m}", "{h} en punto"),
    "fr": ("{h} heure{s} {m}", "{h} heure{s}"),
    "de": ("{h} Uhr {m}", "{h} Uhr"),
    "it": ("{h} e {m}", "{h}"),
    "pt": ("{h} e {m}", "{h} hora{s}"),
    "ja": ("{h}時{m}分", "{h}時"),
    "ko": ("{h} 시 {m} 분", "{h} 시"),
}
"""A time with minutes, and a full hour."""

ORDINALS = {
    "es": "er|ro|ra|do|da|to|ta|mo|ma|vo|va|no|na",
    "fr": "er|ère|re|ers|res|èmes?|emes?|es?|nde?",
    "it": "°(?= (?:posto|piano|turno|anno|luogo|premio))",
    "pt": "°(?= (?:lugar|andar|ano|dia|piso))",
}
"""What makes a number an ordinal, beside "º" and "ª"."""

FEMININE = {
    "es": "(?!(?:para|hasta|contra|cada|día|sea|era|entra|nada|mapa|problema|tema|programa|sistema|idioma)s?$)"
    "(?:.{2,}as?|.+(?:ión|iones|dad|dades)|mujeres|veces|noches|tardes|partes|clases)",
    "pt": "(?!(?:para|contra|cada|dia|seja|era|mapa|problema|tema|programa|sistema|nas|das|mas)s?$)"
    "(?:.{2,}as?|.+(?:ção|ções|dade|dades|gem|gens)|mulheres|vezes|noites|tardes|partes)",
    "it": "(?!(?:alla|dalla|della|nella|sulla|ma|fra|tra|era|problema|programma|sistema|tema)$).{2,}a|volte|notte",
    "fr": "(?:milli)?secondes?|heures?|minutes?|années?|semaines?|journées?|nuits?|fois|personnes?|pages?|tonnes?|"
    "livres?|places?|chambres?|femmes?|filles?|tasses?|bouteilles?|pièces?|étoiles?|kilocalories?|roupies?|pommes?|"
    "voitures?|portes?|.+(?:tions?|sions?|ettes?|ances?|ences?)",
    "de": ".*(?:stunde|minute|sekunde|woche|nacht|tonne|meile|kalorie|person|seite|frage|tasse|flasche|karte|straße|"
    "million|milliarde|ung|heit|keit|schaft|tion|tät)",
    "ru": "(?!(?:или|мы|вы|при|если|они|мужчина|папа)$).{2,}[аяыи]",
}
"""Nouns before which one, two or hundreds take the feminine form."""

NO_NOUN = frozenset(
    _split(
        "es la el las los lo en de del al para por con y o que se su no si más menos a e ha hasta contra cada como "
        "di da il in per su con ma non è dal dalla alla alle della le gli i ed sono più meno"
    )
)
"""Words after a number that are no noun."""

LABELS = (
    "opción|línea|número|capítulo|página|nivel|sala|puerta|paso|fase|grupo|tipo|piso|versión|tecla|el|option|ligne|"
    "chapitre|page|chambre|numéro|étape|niveau|porte|le|Nummer|Kapitel|Seite|Gleis|Zimmer|Linie|Platz|Stufe|Schritt|"
    "Taste|Option|Phase|opzione|linea|capitolo|pagina|livello|passo|binario|camera|tasto|il|opção|linha|capítulo|"
    "nível|passo|tecla|o"
)
"""Words before a number that names something: no noun follows it."""

KOREAN_NATIVE = r"시간|시(?![가-힣])|번째|개(?!월|년|국|소)|명|살|마리|잔|병(?!원)|권|달(?!러)|사람|가지|장|송이|켤레"
KOREAN_UNITS = "년|일|분|초|원|개월|주|층|호|회|점|세|번|도|킬로|미터|달러|유로|월"
KOREAN_NUMBERS = (
    ["", *_split("한 두 세 네 다섯 여섯 일곱 여덟 아홉")],
    ["", *_split("열 스물 서른 마흔 쉰 예순 일흔 여든 아흔")],
)
"""Native numbers before a counter: ones and tens."""

RUSSIAN_ENDINGS = {
    ending: (case, gender)
    for form, endings in _entries(
        "n/m й ый ий|n/f я ая|n/n е ое ье|g/m го ого его|d/m му ому|p/m м ом ем|a/f ю ую|g/f ой|g/p х ых|i/p ми ыми|"
        "n/p ые ие"
    ).items()
    for case, gender in [form.split("/")]
    for ending in endings.split()
}
"""Ending after a number -> case and gender of the ordinal; "p" is the plural."""

RUSSIAN_YEARS = {"год": "n", "года": "g", "году": "p", "годом": "i"}

MORE_SYMBOLS = {
    **{"℃": "temperature-celsius", "℉": "temperature-fahrenheit", "°С": "temperature-celsius"},
    **{"KB": "digital-kilobyte", "L": "volume-liter", "mL": "volume-milliliter", "kph": "speed-kilometer-per-hour"},
}
NO_SYMBOLS = frozenset(("с", "in"))
"""Symbols that are more often words: the Russian preposition."""
NO_DATIVE = frozenset(("Uhr", "Prozent", "Grad"))
