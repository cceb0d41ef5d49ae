"""What written English stands for: units, currencies, abbreviations, words that are not read as they are spelled."""

from __future__ import annotations

import re


def _table(text: str) -> dict[str, str]:
    """Return what each name stands for: "km=kilometer, m=meter"."""
    return dict(pair.strip().split("=") for pair in re.split(",(?=[^,=]*=)", text))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


DAYS = _table(
    "mon=Monday, tue=Tuesday, tues=Tuesday, wed=Wednesday, thu=Thursday, thur=Thursday, thurs=Thursday,"
    "fri=Friday, sat=Saturday, sun=Sunday"
)
MONTHS = _table(
    "jan=January, feb=February, mar=March, apr=April, may=May, jun=June, jul=July, aug=August, sep=September,"
    "oct=October, nov=November, dec=December"
)

MONTH_WORDS = [*MONTHS, *map(str.lower, MONTHS.values()), "sept"]

_LENGTHS = _table("km=kilometer, m=meter, cm=centimeter, mm=millimeter, ft=foot, mi=mile, in=inch, yd=yard")
_POWERS = _table("{}²=square, {}2=square, {}^2=square, sq {}=square, {}³=cubic, {}3=cubic, {}^3=cubic, cu {}=cubic")
UNITS = {
    **{name: word for name, word in _LENGTHS.items() if name != "in"},
    **_table(
        "µm=micrometer, nm=nanometer, yds=yard, kg=kilogram, g=gram, mg=milligram, µg=microgram, ha=hectare,"
        "mcg=microgram, oz=ounce, lb=pound, lbs=pound, L=liter, l=liter, dL=deciliter, dl=deciliter,"
        "cl=centiliter, kL=kiloliter, kl=kiloliter, hl=hectoliter, kgf=kilogram force, GWh=gigawatt hour, "
        "gWh=gigawatt hour,"
        "mL=milliliter, ml=milliliter, µL=microliter, gal=gallon, qt=quart, pt=pint, fl oz=fluid ounce,"
        "cc=C C, KB=kilobyte, kB=kilobyte, kb=kilobyte, MB=megabyte, GB=gigabyte, TB=terabyte,"
        "PB=petabyte, KiB=kibibyte, MiB=mebibyte, GiB=gibibyte, TiB=tebibyte, Kb=kilobit, Mb=megabit, Gb=gigabit,"
        "px=pixel, MP=megapixel, ms=millisecond, µs=microsecond, ns=nanosecond, sec=second, secs=second,"
        "min=minute, mins=minute, hr=hour, hrs=hour, wk=week, wks=week, mo=month, mos=month, yr=year, yrs=year,"
        "kW=kilowatt, MW=megawatt, GW=gigawatt, mW=milliwatt, Wh=watt hour, kWh=kilowatt hour, "
        "KWh=kilowatt hour, kwh=kilowatt hour, MWh=megawatt hour,"
        "kV=kilovolt, mV=millivolt, mv=millivolt, mA=milliamp, mAh=milliamp hour, Ah=amp hour, Ω=ohm, kΩ=kiloohm,"
        "MΩ=megaohm, µF=microfarad, dB=decibel, kcal=kilocalorie, cal=calorie, kJ=kilojoule, °=degree,"
        "°C=degree Celsius, °F=degree Fahrenheit, Hz=hertz, kHz=kilohertz, MHz=megahertz, GHz=gigahertz,"
        "THz=terahertz, hp=horsepower, kn=knot, mph=mile per hour, kph=kilometer per hour, kmh=kilometer per hour,"
        "bpm=beat per minute, BPM=beat per minute, req=request, rpm=revolution per minute, fps=frame per second,"
        "kbps=kilobit per second, mbps=megabit per second, Mbps=megabit per second, Gbps=gigabit per second,"
        "dpi=dot per inch, ppm=part per million, mmHg=millimeter of mercury, psi=P S I, bps=basis point,"
        "bp=basis point, pp=percentage point, pts=point, kt=knot, nmi=nautical mile, inHg=inch of mercury,"
        "ct=count, Pa=pascal, hPa=hectopascal, kPa=kilopascal, mbar=millibar, Nm=newton meter, kN=kilonewton,"
        "mol=mole, mmol=millimole, IU=international unit, mEq=milliequivalent, lx=lux, lm=lumen, ℃=degree Celsius,"
        "℉=degree Fahrenheit, ㎏=kilogram, ㎎=milligram, ㎜=millimeter, ㎝=centimeter, ㎞=kilometer, ㎡=square meter,"
        "㎥=cubic meter, ㎖=milliliter, ℓ=liter, ㎐=hertz, ㎒=megahertz, ㏈=decibel, sqft=square foot, pct=percent"
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
            "yr, mo, wk, hr, min, sec, L, l, dL, dl, mL, ml, lb, kg, g, oz, km, mi, m, ft, kWh, GB, m², m2, m³,"
            "m3, cm², cm³, gal, mol, second, minute, hour, day, night, week, month, year, item, page, person,"
            "piece, request, seat, user, gallon, mile, pound, dose, in²"
        )
    },
    **_table(
        "h=hour, s=second, d=day, pp=person, sq ft=square foot, sqft=square foot, s²=second squared,"
        "s2=second squared, s^2=second squared, ea=item"
    ),
}
SPOONS = {"tsp": "teaspoon", "tbsp": "tablespoon"}
FRACTION_SIGNS = list("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒")
MAGNITUDES = _table(
    "k=thousand, m=million, mm=million, mn=million, mio=million, b=billion, bn=billion, t=trillion, tn=trillion"
)
CURRENCIES = _table(
    "$=dollar, €=euro, £=pound, ¥=yen, ￥=yen, ₹=rupee, ₩=won, ₽=ruble, ₿=bitcoin, ₺=lira, ₴=hryvnia, ₪=shekel,"
    "฿=baht, ₫=dong, ₦=naira, ₱=peso, US$=US dollar, US $=US dollar, C$=Canadian dollar, CA$=Canadian dollar,"
    "CAD$=Canadian dollar, A$=Australian dollar, AU$=Australian dollar, NZ$=New Zealand dollar,"
    "HK$=Hong Kong dollar, S$=Singapore dollar, R$=real, Rs.=rupee, Rs=rupee, kr=krona, zł=zloty"
)
CURRENCY_CODES = _table(
    "EUR=euro, GBP=pound, JPY=yen, INR=rupee, CHF=Swiss franc, USD=US dollar, CAD=Canadian dollar, CNY=yuan,"
    "RMB=yuan, AUD=Australian dollar, NZD=New Zealand dollar, HKD=Hong Kong dollar, SGD=Singapore dollar, KRW=won,"
    "MXN=Mexican peso, BRL=real, SEK=Swedish krona, NOK=Norwegian krone, DKK=Danish krone, PLN=zloty,"
    "CZK=Czech koruna, TRY=lira, ZAR=rand, RUB=ruble, UAH=hryvnia, ILS=shekel, THB=baht, BTC=bitcoin, ETH=ether,"
    "AED=dirham"
)
CENTS = _table("pound=penny, rupee=paisa, ruble=kopeck, Swiss franc=centime, zloty=grosz, krona=öre")
"""A hundredth of a currency; others have cents."""
NO_CENTS = _names("yen, won, bitcoin, ether, dong, yuan, lira, hryvnia, shekel, baht, naira, rand, dirham")
"""Currencies whose parts are read as decimals."""


def plural(name: str) -> str:
    """Return several of a unit or currency: "miles per hour", "square feet", "yen"."""
    head, *rest = re.split(" (?=(?:per|of|force|Celsius|Fahrenheit|squared)\\b)", name, maxsplit=1)
    if head.endswith("foot"):
        head = f"{head[:-4]}feet"
    elif head.endswith(("inch", "lux")):
        head += "es"
    elif head.endswith(("penny", "dox")):
        head = "pence"
    elif not head.endswith(
        ("hertz", "horsepower", "yen", "yuan", "won", "baht", "rand", "dong", "P S I", "C C", "percent")
    ):
        head += "s"
    return " ".join([head, *rest])


STREETS = _table(
    "Ave=Avenue, Blvd=Boulevard, Cir=Circle, Ct=Court, Dr=Drive, Expy=Expressway, Hwy=Highway, Ln=Lane,"
    "Pkwy=Parkway, Pl=Place, Rd=Road, Sq=Square, St=Street, Ter=Terrace"
)
DIRECTIONS = _table("N=North, S=South, E=East, W=West, NE=Northeast, NW=Northwest, SE=Southeast, SW=Southwest")
PLACES = _table("apt=apartment, ste=suite, rm=room, ext=extension, bldg=building, fl=floor")
TITLES = _table(
    "Mr=Mister, Mrs=Misses, Ms=Miz, Dr=Doctor, Prof=Professor, Gen=General, Gov=Governor, Sen=Senator,"
    "Rep=Representative, Capt=Captain, Lt=Lieutenant, Col=Colonel, Sgt=Sergeant, Cmdr=Commander, Rev=Reverend,"
    "Hon=Honorable, Pres=President, Supt=Superintendent, Cpl=Corporal, Maj=Major, Adm=Admiral, Msgr=Monsignor,"
    "St=Saint, Ste=Saint, Pt=Point, Mt=Mount, Ft=Fort, Atty=Attorney, Insp=Inspector, Messrs=Messieurs"
)
"""Before a name; some are also words or stand for something else."""
BEFORE_NUMBER = _table(
    "Pt.=Part, pt.=part, Ca.=Circa, ca.=circa, c.=circa, p.=page, pp.=pages, pg.=page, Hwy.=Highway, Hwy=Highway,"
    "Rte.=Route, Rte=Route, Rt.=Route, Sec.=Section, sec.=section, Eq.=Equation, eq.=equation, Art.=Article,"
    "art.=article, No.=Number, no.=number, Nos.=Numbers, nos.=numbers, №=number, Fig.=Figure, fig.=figure,"
    "Figs.=Figures, figs.=figures, Ch.=Chapter, ch.=chapter, chap.=chapter, Vol.=Volume, vol.=volume, Ex.=Example,"
    "ex.=example, para.=paragraph, Para.=Paragraph, ln.=line, l.=line, Tel.=Telephone, tel.=telephone,"
    "Tel=Telephone, vs.=versus, est.=established, Est.=Established, §=section, §§=sections, ¶=paragraph,"
    "Ver.=Version, ver.=version, qty.=quantity, Qty.=Quantity, #=number, Apt=Apartment, temp.=temperature,"
    "max.=maximum, min.=minimum, avg.=average, fn.=footnote, Ep.=Episode, ep.=episode, Cat.=Category, cat.=category"
)
"""Abbreviations only before a number: "no." and "fig." are words elsewhere."""
SHORT_WORDS = _table(
    "appt=appointment, appts=appointments, approx=approximately, dept=department, depts=departments,"
    "govt=government, acct=account, accts=accounts, misc=miscellaneous, pkg=package, qty=quantity, incl=including,"
    "excl=excluding, mgmt=management, mgr=manager, intl=international, natl=national, asst=assistant,"
    "assn=association, assoc=associate, univ=university, inc=incorporated, ltd=limited, corp=corporation,"
    "bros=brothers, jr=junior, sr=senior, esq=esquire, avg=average, amt=amount, bldg=building, hwy=highway,"
    "blvd=boulevard, pkwy=parkway, ave=avenue, tel=telephone, tbsp=tablespoon, tsp=teaspoon, viz=namely,"
    "cf=compare, resp=respectively, ext=extension, tues=Tuesday, thurs=Thursday, sept=September, aug=August,"
    "oct=October, nov=November, feb=February, est=estimated, lg=large, etc=et cetera, lbs=pounds, oz=ounces,"
    "hrs=hours, mins=minutes, secs=seconds, yrs=years, mos=months, wks=weeks, vol=volume, para=paragraph,"
    "esp=especially"
)
"""Words that exist only as abbreviations, with a period: "appt." is never the end of a word."""
BEFORE_WORD = _table(
    "temp=temperature, min=minimum, max=maximum, med=medium, sm=small, gal=gallon, sec=second, hr=hour, mo=month,"
    "yr=year, wk=week, fl=fluid, co=company, ed=edition, eds=editors, ref=reference, std=standard, reg=regular,"
    "orig=original, prev=previous, gen=general, pop=population, int=interior, ch=chapter, fig=figure, sq=square,"
    "cu=cubic, rd=road, rm=room, apt=apartment, pt=point, mt=mount"
)
"""Abbreviations before a word in small letters, and words elsewhere."""
WORDS = _table(
    "e.g.=for example, i.e.=that is, a.k.a.=also known as, vs.=versus, vs=versus, et al.=et al, P.S.=P S,"
    "p.s.=P S, w/=with, w/o=without, w/in=within, c/o=care of, b/c=because, n/a=N, A, N/A=N, A, aka=also known as,"
    "AKA=also known as, Ctrl=control, CTRL=control, Del=delete, Esc=escape, and/or=and or, he/she=he or she,"
    "his/her=his or her, him/her=him or her, s/he=she or he, she/he=she or he, C++=C plus plus, C#=C sharp,"
    "F#=F sharp, Q&A=Q and A, R&D=R and D, AT&T=A T and T, Wi-Fi=Wi-Fi, CUDA=Kooda, JSON=Jason, YAML=Yammel,"
    "nginx=engine X, NGINX=engine X, AAA=triple A, AB=A, B, YoY=year over year, QoQ=quarter over quarter,"
    "MoM=month over month, either/or=either or, over/under=over under, IEEE=I triple E, IPv4=I P V four,"
    "IPv6=I P V six, WWI=World War One, WWII=World War Two, 401(k)=four oh one K, 401k=four oh one K,"
    "403(b)=four oh three B, W-2=W two, W-9=W nine, 1099=ten ninety-nine, WW1=World War One, WW2=World War Two,"
    "NaCl=N A, C L, NaOH=N A, O H, HCl=H C L, KCl=K C L, pH=P H, Ph.D.=P H D, M.D.=M D, e-mail=e-mail, U.S.C.=U S C"
)
"""Words that are not read as they are spelled; they may follow a space or a bracket."""
GREEK = _table(
    "α=alpha, β=beta, γ=gamma, δ=delta, Δ=delta, ε=epsilon, ζ=zeta, η=eta, θ=theta, ι=iota, κ=kappa, λ=lambda,"
    "Λ=lambda, μ=mu, µ=mu, ν=nu, ξ=xi, π=pi, Π=pi, ρ=rho, σ=sigma, Σ=sigma, τ=tau, υ=upsilon, φ=phi, Φ=phi, χ=chi,"
    "ψ=psi, Ψ=psi, ω=omega, Ω=omega, Γ=gamma, Θ=theta, ∆=delta"
)
"""Letters that are symbols when they stand alone."""
SIGNS = _table(
    "%=percent, ‰=per thousand, @=at, #=hash, ∓=minus or plus, ×=times, ⋅=times,"
    "∙=times, ÷=divided by, ≈=is approximately, ≃=is approximately, ≅=is approximately,"
    "≡=is identical to, ∝=is proportional to, ≤=is less than or equal to, ≥=is greater than or equal to,"
    "≪=is much less than, ≫=is much greater than, °=degrees, º=degrees, ′=prime, ″=double prime, ¢=cents,"
    "©=copyright, §=section, ¶=paragraph, √=the square root of, ∛=the cube root of, ∞=infinity, ∑=the sum of,"
    "∏=the product of, ∫=the integral of, ∂=partial, ∇=del, ∈=in, ∉=not in, ∪=union, ∩=intersection,"
    "⊂=is a subset of, ⊆=is a subset of, ∅=the empty set, ∀=for all, ∃=there exists, ¬=not, ∧=and, ∨=or, →=to,"
    "⇒=implies, ↔=if and only if, ⇔=if and only if, ←=from, ↑=up, ↓=down, №=number, ∴=therefore, ℅=care of,"
    "℗=copyright, ª=A, ⌘=command, ⌥=option, ⇧=shift, <=is less than, >=is greater than, ~=about,"
    "^=to the power of, $=dollar, €=euros, £=pounds, ¥=yen, ₹=rupees, ₩=won, ₽=rubles, ₿=bitcoin, ₺=lira, ₪=shekels"
)
"""What is left of signs; others are silent."""
STATES = _table(
    "AL=Alabama, MA=Massachusetts, PA=Pennsylvania, AK=Alaska, AR=Arkansas, AZ=Arizona, CA=California,"
    "CO=Colorado, CT=Connecticut, DE=Delaware, FL=Florida, GA=Georgia, IA=Iowa, ID=Idaho, IL=Illinois, KS=Kansas,"
    "KY=Kentucky, LA=Louisiana, MD=Maryland, MI=Michigan, MN=Minnesota, MO=Missouri, MS=Mississippi, MT=Montana,"
    "NC=North Carolina, ND=North Dakota, NE=Nebraska, NH=New Hampshire, NJ=New Jersey, NM=New Mexico, NV=Nevada,"
    "NY=New York, RI=Rhode Island, SC=South Carolina, SD=South Dakota, TN=Tennessee, TX=Texas, UT=Utah,"
    "VA=Virginia, VT=Vermont, WA=Washington, WI=Wisconsin, WV=West Virginia, WY=Wyoming"
)
"""States of the USA whose codes are no English words."""
ALL_STATES = STATES | _table("DC=D C, HI=Hawaii, IN=Indiana, ME=Maine, OH=Ohio, OK=Oklahoma, OR=Oregon")
"""Recognized before a ZIP code."""
STATE_NAMES = [name for code, name in ALL_STATES.items() if code != "DC"]
COUNTED = _names(
    "copies, customers, downloads, followers, homes, installs, jobs, lines, members, parameters, params, people,"
    "plays, records, requests, rows, streams, subscribers, tokens, units, users, viewers, views, visitors, visits,"
    "votes"
)
"""What is counted in millions: "5M users"."""
NUMBERED_IN_ROMAN = _names(
    "Act, Apollo, Article, Book, Chapter, Class, Episode, Final Fantasy, Level, Part, Phase, Round, Scene,"
    "Section, Stage, Super Bowl, Title, Type, Volume, World War"
)
SUBJECTS = _names("Calculus, Physics, Algebra, Chemistry, Biology, English, Spanish, French, Geometry, Statistics")
RULERS = _names(
    "Alexander, Benedict, Catherine, Charles, Christian, Edward, Elizabeth, Ferdinand, Francis, Frederick, George,"
    "Gustav, Harald, Henry, Ivan, James, Leo, Leopold, Louis, Margrethe, Napoleon, Nicholas, Paul, Peter, Philip,"
    "Pius, Ramses, Richard, Wilhelm, William"
)
