"""What written English stands for: units, currencies, abbreviations, words that are not read as they are spelled."""

from __future__ import annotations

import re


def _table(text: str) -> dict[str, str]:
    """Return what each name stands for: "km=kilometer, m=meter"."""
    return dict(pair.strip().split("=") for pair in re.split(",(?=[^,=]*=)", text))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


DAYS = _table(
    "mon=Monday, tue=Tuesday, tues=Tuesday, wed=Wednesday, thu=Thursday, thur=Thursday, thurs=Thursday, fri=Friday,"
    "sat=Saturday, sun=Sunday"
)
MONTHS = _table(
    "jan=January, feb=February, mar=March, apr=April, may=May, jun=June, jul=July, aug=August, sep=September,"
    "oct=October, nov=November, dec=December"
)

_LENGTHS = _table("km=kilometer, m=meter, cm=centimeter, mm=millimeter, ft=foot, mi=mile")
_POWERS = _table("{}²=square, {}2=square, sq {}=square, {}³=cubic, {}3=cubic, cu {}=cubic")
UNITS = {
    **_LENGTHS,
    **_table(
        "µm=micrometer, nm=nanometer, yd=yard, yds=yard, kg=kilogram, g=gram, mg=milligram, µg=microgram,"
        "mcg=microgram, oz=ounce, lb=pound, lbs=pound, L=liter, l=liter, dL=deciliter, mL=milliliter, ml=milliliter,"
        "gal=gallon, qt=quart, fl oz=fluid ounce, cc=cubic centimeter, KB=kilobyte, kB=kilobyte, MB=megabyte,"
        "GB=gigabyte, TB=terabyte, px=pixel, MP=megapixel, ms=millisecond, µs=microsecond, sec=second, secs=second,"
        "min=minute, mins=minute, hr=hour, hrs=hour, wk=week, wks=week, mo=month, mos=month, yr=year, yrs=year,"
        "kW=kilowatt, MW=megawatt, GW=gigawatt, kWh=kilowatt hour, kV=kilovolt, mA=milliamp, mAh=milliamp hour,"
        "dB=decibel, kcal=kilocalorie, kJ=kilojoule, °=degree, °C=degree Celsius, °F=degree Fahrenheit,"
        "Hz=hertz, kHz=kilohertz, MHz=megahertz, GHz=gigahertz, hp=horsepower, mph=mile per hour,"
        "kph=kilometer per hour, bpm=beat per minute, fps=frame per second, kbps=kilobit per second,"
        "Mbps=megabit per second, Gbps=gigabit per second, mmHg=millimeter of mercury"
    ),
    **{
        written.format(unit): f"{power} {name}" for written, power in _POWERS.items() for unit, name in _LENGTHS.items()
    },
}
"""One of a unit that follows a number."""
VOLTS = {"V": "volt", "W": "watt"}
RATES = {
    **{
        name: UNITS.get(name, name)
        for name in _names(
            "yr, mo, wk, hr, min, sec, L, dL, mL, lb, kg, oz, km, mi, kWh, GB, m², m2, gal, second, minute, hour, day,"
            "night, week, month, year, item, page, person, piece, request, seat, user"
        )
    },
    **_table("h=hour, s=second, d=day, pp=person, sq ft=square foot, sqft=square foot"),
}
SPOONS = {"tsp": "teaspoon", "tbsp": "tablespoon"}
FRACTIONS = _table(
    "½=a half, ⅓=one third, ⅔=two thirds, ¼=a quarter, ¾=three quarters, ⅛=one eighth, ⅜=three eighths,"
    "⅝=five eighths, ⅞=seven eighths"
)
MAGNITUDES = _table("k=thousand, m=million, mm=million, mn=million, b=billion, bn=billion, t=trillion, tn=trillion")
CURRENCIES = _table(
    "$=dollar, €=euro, £=pound, ¥=yen, US$=US dollar, C$=Canadian dollar, CA$=Canadian dollar, A$=Australian dollar,"
    "AU$=Australian dollar, NZ$=New Zealand dollar, HK$=Hong Kong dollar"
)
CURRENCY_CODES = _table(
    "EUR=euro, GBP=pound, JPY=yen, INR=rupee, CHF=Swiss franc, USD=US dollar, CAD=Canadian dollar,"
    "AUD=Australian dollar, NZD=New Zealand dollar, HKD=Hong Kong dollar"
)


def plural(name: str) -> str:
    """Return several of a unit or currency: "miles per hour", "square feet", "yen"."""
    head, *rest = re.split(" (?=(?:per|of|Celsius|Fahrenheit)\\b)", name, maxsplit=1)
    if head.endswith("foot"):
        head = f"{head[:-4]}feet"
    elif not head.endswith(("hertz", "horsepower", "yen")):
        head += "s"
    return " ".join([head, *rest])


STREETS = _table(
    "Ave=Avenue, Blvd=Boulevard, Cir=Circle, Ct=Court, Dr=Drive, Hwy=Highway, Pkwy=Parkway, Pl=Place, Rd=Road,"
    "Sq=Square, St=Street, Ter=Terrace"
)
DIRECTIONS = _table("N=North, S=South, E=East, W=West, NE=Northeast, NW=Northwest, SE=Southeast, SW=Southwest")
PLACES = _table("apt=apartment, ste=suite, rm=room, ext=extension, bldg=building, fl=floor")
BEFORE_NUMBER = _table(
    "Pt.=Part, pt.=part, Ca.=Circa, ca.=circa, p.=page, Hwy.=Highway, Hwy=Highway, Rte.=Route, Rte=Route, Rt.=Route,"
    "Sec.=Section, sec.=section, Eq.=Equation, eq.=equation, Art.=Article, art.=article"
)
WORDS = _table(
    "e.g.=for example, i.e.=that is, a.k.a.=also known as, vs.=versus, vs=versus, approx.=approximately,"
    "incl.=including, CUDA=Kooda, JSON=Jason, YAML=Yammel, nginx=engine X, NGINX=engine X, AAA=triple A,"
    "IEEE=I triple E, IPv4=I P V four, IPv6=I P V six, WWI=World War One, WWII=World War Two, WW1=World War One,"
    "WW2=World War Two, NaCl=N A, C L, NaOH=N A, O H, HCl=H C L, KCl=K C L"
)
"""Words that are not read as they are spelled; they may follow a space or a bracket."""
STATES = _table(
    "AK=Alaska, AR=Arkansas, AZ=Arizona, CA=California, CO=Colorado, CT=Connecticut, DE=Delaware, FL=Florida,"
    "GA=Georgia, IA=Iowa, ID=Idaho, IL=Illinois, KS=Kansas, KY=Kentucky, LA=Louisiana, MD=Maryland, MI=Michigan,"
    "MN=Minnesota, MO=Missouri, MS=Mississippi, MT=Montana, NC=North Carolina, ND=North Dakota, NE=Nebraska,"
    "NH=New Hampshire, NJ=New Jersey, NM=New Mexico, NV=Nevada, NY=New York, RI=Rhode Island, SC=South Carolina,"
    "SD=South Dakota, TN=Tennessee, TX=Texas, UT=Utah, VA=Virginia, VT=Vermont, WA=Washington, WI=Wisconsin,"
    "WV=West Virginia, WY=Wyoming"
)
"""States of the USA whose codes are no English words."""
ALL_STATES = STATES | _table(
    "AL=Alabama, DC=D C, HI=Hawaii, IN=Indiana, MA=Massachusetts, ME=Maine, OH=Ohio, OK=Oklahoma, OR=Oregon,"
    "PA=Pennsylvania"
)
"""Recognized before a ZIP code."""
COUNTED = _names(
    "copies, customers, downloads, followers, homes, installs, jobs, lines, members, parameters, params, people,"
    "plays, records, requests, rows, streams, subscribers, tokens, units, users, viewers, views, visitors, visits,"
    "votes"
)
"""What is counted in millions: "5M users"."""
NUMBERED_IN_ROMAN = _names(
    "Act, Apollo, Article, Book, Chapter, Class, Episode, Final Fantasy, Level, Part, Phase, Round, Scene, Section,"
    "Stage, Super Bowl, Title, Type, Volume, World War"
)
RULERS = _names(
    "Alexander, Benedict, Catherine, Charles, Christian, Edward, Elizabeth, Ferdinand, Francis, Frederick, George,"
    "Gustav, Harald, Henry, Ivan, James, Leo, Leopold, Louis, Margrethe, Napoleon, Nicholas, Paul, Peter, Philip,"
    "Pius, Ramses, Richard, Wilhelm, William"
)
