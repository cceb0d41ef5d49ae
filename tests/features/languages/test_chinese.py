"""Chinese: what is written in digits and signs is spoken in words, and a value never changes."""

from __future__ import annotations

import re
import time
from datetime import date
from datetime import time as time_of_day
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cases import each_case
from tts_worker.features.languages.chinese import rewrites
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Segment


def read(text: str, before: str = "") -> str:
    spoken, done = "", len(before)
    for start, end, words in rewrites(before + text, len(before)):
        assert done <= start < end <= len(before + text)
        spoken += (before + text)[done:start] + words
        done = end
    return spoken + (before + text)[done:]


CASES = {
    "cardinals": """
        共465篇，约315万字 => 共四百六十五篇，约三百一十五万字
        我有2个苹果和12个梨 => 我有两个苹果和十二个梨
        200人，2000米，2万元，2亿 => 两百人，两千米，两万元，两亿
        3200和22000和102 => 三千二百和两万二千和一百零二
        10、110、1010、10001、100010 => 十、一百一十、一千零一十、一万零一、十万零一十
        100100000人 => 一亿零一十万人
        1,234,567次 => 一百二十三万四千五百六十七次
        人口1400000000 => 人口十四亿
        2-3个，20多岁，10几 => 两到三个，二十多岁，十几
        ３个 => 三个
        0度 => 零度
        2两肉，2号楼，2楼 => 二两肉，二号楼，二楼
    """,
    "ordinals": """
        第2日 => 第二日
        第2个，第200名，第12届 => 第二个，第二百名，第十二届
        第1-3章 => 第一到三章
        第III章 => 第三章
        No.1 => 第一
    """,
    "decimals": """
        3.14159 => 三点一四一五九
        .5毫克 => 零点五毫克
        3.50和2.0 => 三点五零和二点零
        6.42万人 => 六点四二万人
        2.5个 => 二点五个
        0.6个百分点 => 零点六个百分点
    """,
    "signs": """
        计算-2的绝对值 => 计算负二的绝对值
        ±2的平方 => 正负二的平方
        气温-5℃ => 气温零下五摄氏度
        -3.5 => 负三点五
        −7分 => 负七分
    """,
    "percent": """
        增长6.3% => 增长百分之六点三
        -0.5% => 负百分之零点五
        100% => 百分之百
        5-10% => 百分之五到百分之十
        5%~10%，10%-20% => 百分之五到百分之十，百分之十到百分之二十
        3‰ => 千分之三
        ５％ => 百分之五
    """,
    "fractions": """
        总量的1/3以上 => 总量的三分之一以上
        2 1/2杯 => 二又二分之一杯
        ½杯，5½杯 => 二分之一杯，五又二分之一杯
        3/16 => 十六分之三
        第2/3季度 => 第二、三季度
    """,
    "amounts": """
        价格是￥12.50。 => 价格是十二元五角。
        ￥12.05和￥12.55和￥0.50 => 十二元零五分和十二元五角五分和五角
        ￥13.5 => 十三点五元
        12.50元/斤 => 十二元五角每斤
        $1,234 => 一千二百三十四美元
        $12,086.40 => 一万二千零八十六美元四十美分
        HK$100、US$20、€5.5 => 一百港元、二十美元、五点五欧元
        USD 100和100RMB => 一百美元和一百元
        ￥3.5万，￥2亿 => 三点五万元，两亿元
        $5-10 => 五到十美元
        -$25.00 => 负二十五美元
        $5M => 五百万美元
        2元，2块钱，2美元 => 两元，两块钱，两美元
    """,
    "dates": """
        2026年2月2日 => 二零二六年二月二日
        2月2日 => 二月二日
        2026-02-02 => 二零二六年二月二日
        2026/2/2和2026.02.02 => 二零二六年二月二日和二零二六年二月二日
        2008-08 => 二零零八年八月
        08-08 => 八月八日
        截至2/28 => 截至二月二十八日
        2019-2020年，1939-1945 => 二零一九到二零二零年，一九三九到一九四五
        2019年-2021年 => 二零一九年到二零二一年
        2年后，20年前，5000年历史 => 两年后，二十年前，五千年历史
        90年代，98年5月，2024款 => 九十年代，九八年五月，二零二四款
        3月1-5日 => 三月一到五日
        12个月，2个月 => 十二个月，两个月
    """,
    "times": """
        10:30开会 => 十点三十分开会
        8:05出发，12:00之前 => 八点零五分出发，十二点之前
        2:00，22：58 => 两点，二十二点五十八分
        于5:35:36发射 => 于五点三十五分三十六秒发射
        8:00-18:00 => 八点到十八点
        8:00 a.m.准时 => 上午八点准时
        3:15pm，8pm => 下午三点十五分，晚上八点
        2点半，2小时，2分钟 => 两点半，两小时，两分钟
    """,
    "ranges": """
        5-10个 => 五到十个
        5~10公里 => 五到十公里
        ~50人 => 约五十人
        5-10km => 五到十公里
        -5~10℃ => 负五到十摄氏度
        5℃-10℃ => 五摄氏度到十摄氏度
        100—200元 => 一百到两百元
    """,
    "telephones": """
        打我手机13501234567 => 打我手机幺三五零幺二三四五六七
        138-1234-5678 => 幺三八，幺二三四，五六七八
        +86 138 1234 5678 => 加八六，幺三八，幺二三四，五六七八
        010-64035547 => 零幺零，六四零三五五四七
        拨打12306 => 拨打幺二三零六
        报警请打110 => 报警请打幺幺零
        400-820-8820 => 四零零，八二零，八八二零
        +1 (415) 555-2671 => 加幺，四幺五，五五五，二六七幺
    """,
    "codes": """
        验证码是482913 => 验证码是四八二九幺三
        尾号1702的卡 => 尾号幺七零二的卡
        订单号A12-3456 => 订单号A幺二，三四五六
        007 => 零零七
        CV-2026-00417 => CV二零二六杠零零四一七
        301室 => 三零一室
        6222 0212 3456 7890 => 六二二二，零二一二，三四五六，七八九零
        A17座，5G，COVID-19，B2B => A十七座，五G，COVID十九，B to B
        G1024次 => G幺零二四次
        iPhone 15 Pro和GPT-4o => iPhone 十五 Pro和GPT四o
        90后，00后 => 九零后，零零后
        985高校 => 九八五高校
        手机号138****1234 => 手机号幺三八幺二三四
    """,
    "measures": """
        25℃ => 二十五摄氏度
        38°C和98.6°F => 三十八摄氏度和九十八点六华氏度
        10kg，2 kg => 十公斤，两公斤
        5km，120km/h，5m/s => 五公里，每小时一百二十公里，每秒五米
        120m²，120m2，3㎡，2m³ => 一百二十平方米，一百二十平方米，三平方米，两立方米
        10ms，500ml，3mAh，60Hz => 十毫秒，五百毫升，三毫安时，六十赫兹
        120mg/dL，8L/100km => 一百二十毫克每分升，每百公里八升
        512GB => 五百一十二GB
        80次/分 => 八十次每分
        50MB/s，￥199/年 => 每秒五十MB，一百九十九元每年
        血压120/80mmHg => 血压一百二十，八十毫米汞柱
        39°54′ => 三十九度五十四分
    """,
    "scores": """
        以3:2战胜 => 以三比二战胜
        比分78:96 => 比分七十八比九十六
        爆冷0-1 => 爆冷零比一
        比例为1:10，16:9屏幕 => 比例为一比十，十六比九屏幕
    """,
    "versions": """
        v2.10.3 => v二点十点三
        127.0.0.1 => 一二七点零点零点一
        iOS 17.4.1 => iOS 十七点四点一
        Python 3.10 => Python 三点一零
    """,
    "operators": """
        1+2=3 => 一加二等于三
        -1+2 => 负一加二
        5-3=2，5 - 3 = 2 => 五减三等于二，五减三 等于 二
        3×4，3*4，3x4，12÷4 => 三乘四，三乘四，三乘四，十二除以四
        x≥5，a < b，a≠b，≤18岁 => x大于等于五，a 小于 b，a不等于b，小于等于十八岁
        x²+y³ => x的平方加y的立方
        2^10，10⁶ => 二的十次方，十的六次方
        UTC+8，GMT-5 => UTC加八，GMT减五
        y=x-5，x²-5x => y等于x减五，x的平方减五x
        C++ => C加加
    """,
    "other signs": """
        §3 => 第三节
        A & B，AT&T => A 和 B，AT and T
        joe_1@acme.io => joe下划线一艾特acme点io
        @小明 => 艾特小明
        看acme.io/docs => 看acme点io斜杠docs
        #5楼，C# => 五号楼，C井号
        你好~ => 你好
        CO₂和H₂O => CO二和H二O
        ①选择 => 一选择
        用时3 5 => 用时三，五
        A→B => A到B
        男/女 => 男、女
        Wi-Fi和IPHONE => Wi-Fi和IPHONE
        0x1F => 零x一F
    """,
}


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        pytest.param(*line.strip().split(" => "), id=f"{name}-{line.split(' => ')[0].strip()}")
        for name, lines in CASES.items()
        for line in lines.strip().splitlines()
    ],
)
def test_chinese_words(written: str, spoken: str) -> None:
    assert read(written) == spoken


def test_context_of_an_earlier_segment_counts() -> None:
    assert read("482913。", "验证码是， ") == "四八二九幺三。"


# -- the value that is heard is the value written ---------------------------------------------------------------------

DIGITS = "零一二三四五六七八九"
UNITS = {"十": 10, "百": 100, "千": 1_000}


def whole(words: str) -> int:
    """The value of a cardinal in Chinese words; digit by digit if it has no unit."""
    words = words.replace("两", "二").replace("幺", "一")
    for name, unit in (("亿", 10**8), ("万", 10**4)):
        high, found, low = words.rpartition(name)
        if found:
            return whole(high) * unit + (whole(low.lstrip("零")) if low else 0)
    if not re.search("[十百千]", words):
        return int("".join(str(DIGITS.index(char)) for char in words))
    total, digit = 0, None
    for char in words:
        if char in UNITS:
            total += (1 if digit is None else digit) * UNITS[char]
            digit = None
        else:
            digit = DIGITS.index(char)
    return total + (digit or 0)


def value(words: str) -> Decimal:
    """The value of words for a number, with a sign, decimals, 百分之 or 元角分."""
    sign = Decimal(1)
    for name in ("负", "零下"):
        if words.startswith(name):
            sign, words = Decimal(-1), words.removeprefix(name)
    if words.startswith("百分之"):
        words = words.removeprefix("百分之")
        return sign * (Decimal(100) if words == "百" else value(words)) / 100
    if found := re.fullmatch("(?:(.+)元)?零?(?:(.)角)?(?:(.)分)?", words):
        yuan, jiao, fen = found.groups()
        return sign * (
            (value(yuan) if yuan else Decimal(0))
            + Decimal(whole(jiao) if jiao else 0) / 10
            + Decimal(whole(fen) if fen else 0) / 100
        )
    before, _, decimals = words.partition("点")
    return sign * Decimal(f"{whole(before)}.{''.join(str(DIGITS.index(char)) for char in decimals) or 0}")


PLACES = ("{}", "共{}。", "结果为{}吨", "大约{}个", "他说{}，", "({})", "有 {} 次", "从{}起")
numbers = st.one_of(
    st.integers(0, 10_000),
    st.integers(0, 10**12),
    st.sampled_from([10**power + add for power in range(16) for add in (0, 1, 10, 2_000)]),
)


@st.composite
def decimals(draw: st.DrawFn) -> str:
    written = str(draw(numbers)) if draw(st.booleans()) else f"{draw(numbers):,}"
    if draw(st.booleans()):
        written += "." + draw(st.text("0123456789", min_size=1, max_size=4))
    return written


def heard(place: str, written: str, unit: str = "") -> str:
    before, after = place.split("{}")
    spoken = read(before + written + after)
    assert not re.search(r"[\d%$￥+=-]", spoken)
    assert spoken.startswith(before)
    assert spoken.endswith(after)
    return spoken[len(before) : len(spoken) - len(after)].strip().removesuffix(unit)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["", "-", "−"]), decimals(), st.sampled_from(PLACES))
@example("", "100000010000", "{}")
def test_number_is_heard_as_written(sign: str, written: str, place: str) -> None:
    expected = Decimal(written.replace(",", "")) * (-1 if sign else 1)
    assert value(heard(place, sign + written)) == expected


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["", "-"]), decimals(), st.sampled_from(PLACES))
def test_percentage_is_heard_as_written(sign: str, written: str, place: str) -> None:
    expected = Decimal(written.replace(",", "")) / 100 * (-1 if sign else 1)
    assert value(heard(place, f"{sign}{written}%")) == expected


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["", "-"]), decimals(), st.sampled_from(["￥{}", "¥ {}", "{}元", "{}RMB", "RMB{}"]))
def test_amount_is_heard_as_written(sign: str, written: str, form: str) -> None:
    expected = Decimal(written.replace(",", "")) * (-1 if sign else 1)
    assert value(heard("付了{}。", sign + form.format(written))) == expected


@settings(max_examples=100, deadline=None)
@given(
    st.dates(date(1000, 1, 1), date(2999, 12, 31)),
    st.sampled_from(["{0}年{1}月{2}日", "{0}-{1:02}-{2:02}", "{0}/{1}/{2}"]),
)
def test_date_is_heard_as_written(day: date, form: str) -> None:
    found = re.fullmatch("(.{4})年(.+)月(.+)日", read(form.format(day.year, day.month, day.day)))
    assert found is not None
    assert tuple(map(whole, found.groups())) == (day.year, day.month, day.day)


@settings(max_examples=100, deadline=None)
@given(st.times())
def test_time_is_heard_as_written(moment: time_of_day) -> None:
    found = re.fullmatch("(.+)点(?:(.+)分)?", read(f"{moment:%H:%M}"))
    assert found is not None
    assert whole(found[1]) == moment.hour
    assert whole(found[2] or "零") == moment.minute


# -- any text ---------------------------------------------------------------------------------------------------------

SIGNS = "+-−±×÷*/=<>≤≥≠≈~～^_|\\@#$￥€£%‰&§°℃㎡²³₂①Ⅳ½→★•©「{}[]`"
ANY = st.text(
    st.sampled_from("0123456789" * 3 + SIGNS + "年月日点元个第号万的电话码共，。、：:.,!？ ()aAkgmXx-x\n"), max_size=50
)
SPOKEN = re.compile(r"[\u3400-\u9fff〇A-Za-z\s,.!?;:'\"()…—–\-·，。！？；：、“”‘’（）《》〈〉「」『』【】]*")


@settings(max_examples=500, deadline=None)
@given(ANY)
@example("1..2-3--4")
@example("5½½²₂")
def test_no_digit_and_no_sign_is_left(text: str) -> None:
    assert SPOKEN.fullmatch(read(text))


@settings(max_examples=100, deadline=None)
@given(ANY, ANY)
def test_what_precedes_stays_unchanged(before: str, text: str) -> None:
    found = rewrites(before + text, len(before))
    assert all(start >= len(before) for start, _, _ in found)
    assert all(first[1] <= second[0] for first, second in pairwise(found))


@each_case("text", ["1-", "1:", "1/", "1,", "1.", "-", "a-1", "a.b@", "1 ", "￥", "电话1 ", "1²", "no.", "1,111"])
def test_time_is_linear_in_hostile_text(text: str) -> None:
    def seconds(chars: int) -> float:
        began = time.process_time()
        rewrites(text * (chars // len(text)), 0)
        return time.process_time() - began

    seconds(1_600)
    limit_s = 30 * min(seconds(1_600) for _ in range(3)) + 0.05
    assert any(seconds(16_000) < limit_s for _ in range(2))


# -- segments ---------------------------------------------------------------------------------------------------------


def test_words_point_to_what_is_written() -> None:
    text = "我有2个，￥12.50。"
    segment = Verbalizer(("zh", "en")).apply(Segment.whole(text))
    assert segment.text == "我有两个，十二元五角。"
    assert [text[word.start_char : word.end_char] for word in spoken_words(segment)] == [
        "我",
        "有",
        "2",
        "个，",
        "￥12.50。",
    ]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("iPhone 15 Pro Max 发布了", "iPhone 十五 Pro Max 发布了"),
        ("It costs 5 元 in total today", "It costs 五 元 in total today"),
    ],
)
def test_segment_with_han_is_read_as_chinese(text: str, spoken: str) -> None:
    assert Verbalizer(("en", "zh")).apply(Segment.whole(text)).text == spoken
