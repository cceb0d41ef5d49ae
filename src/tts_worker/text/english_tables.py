"""What written English stands for: units, currencies, abbreviations, words that are not read as they are spelled."""

from __future__ import annotations

DAYS = {
    **{"mon": "Monday", "tue": "Tuesday", "tues": "Tuesday", "wed": "Wednesday", "thu": "Thursday"},
    **{"thur": "Thursday", "thurs": "Thursday", "fri": "Friday", "sat": "Saturday", "sun": "Sunday"},
}
MONTHS = {
    **{"jan": "January", "feb": "February", "mar": "March", "apr": "April", "may": "May", "jun": "June"},
    **{"jul": "July", "aug": "August", "sep": "September", "sept": "September", "oct": "October"},
    **{"nov": "November", "dec": "December"},
}
MONTH_NAMES = tuple(dict.fromkeys(MONTHS.values()))

_COUNTED_UNITS = {
    **{"km": "kilometer", "m": "meter", "cm": "centimeter", "mm": "millimeter", "µm": "micrometer", "nm": "nanometer"},
    **{"kg": "kilogram", "g": "gram", "mg": "milligram", "µg": "microgram", "mcg": "microgram", "oz": "ounce"},
    **{"lb": "pound", "lbs": "pound", "L": "liter", "l": "liter", "dL": "deciliter", "mL": "milliliter"},
    **{"ml": "milliliter", "gal": "gallon", "qt": "quart", "fl oz": "fluid ounce", "mi": "mile", "yd": "yard"},
    **{"yds": "yard", "KB": "kilobyte", "kB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte"},
    **{"hr": "hour", "hrs": "hour", "min": "minute", "mins": "minute", "sec": "second", "secs": "second"},
    **{"ms": "millisecond", "µs": "microsecond", "wk": "week", "wks": "week", "mo": "month", "mos": "month"},
    **{"yr": "year", "yrs": "year", "W": "watt", "kW": "kilowatt", "MW": "megawatt", "GW": "gigawatt"},
    **{"kWh": "kilowatt hour", "V": "volt", "kV": "kilovolt", "mA": "milliamp", "mAh": "milliamp hour"},
    **{"dB": "decibel", "kcal": "kilocalorie", "kJ": "kilojoule", "px": "pixel", "MP": "megapixel"},
    **{"cc": "cubic centimeter", "°": "degree"},
}
_OTHER_UNITS = {
    **{"ft": ("foot", "feet"), "°C": ("degree Celsius", "degrees Celsius")},
    **{"°F": ("degree Fahrenheit", "degrees Fahrenheit"), "mmHg": ("millimeter of mercury", "millimeters of mercury")},
    **{"mph": ("mile per hour", "miles per hour"), "kph": ("kilometer per hour", "kilometers per hour")},
    **{"bpm": ("beat per minute", "beats per minute"), "fps": ("frame per second", "frames per second")},
    **{"kbps": ("kilobit per second", "kilobits per second"), "Mbps": ("megabit per second", "megabits per second")},
    **{"Gbps": ("gigabit per second", "gigabits per second"), "Hz": ("hertz", "hertz"), "kHz": ("kilohertz",) * 2},
    **{"MHz": ("megahertz", "megahertz"), "GHz": ("gigahertz", "gigahertz"), "hp": ("horsepower", "horsepower")},
}
_LENGTHS = {
    **{"km": ("kilometer", "kilometers"), "m": ("meter", "meters"), "cm": ("centimeter", "centimeters")},
    **{"mm": ("millimeter", "millimeters"), "ft": ("foot", "feet"), "mi": ("mile", "miles")},
}
UNITS: dict[str, tuple[str, str]] = {
    **{unit: (name, f"{name}s") for unit, name in _COUNTED_UNITS.items()},
    **_OTHER_UNITS,
    **{f"{unit}{mark}": (f"square {one}", f"square {many}") for unit, (one, many) in _LENGTHS.items() for mark in "²2"},
    **{f"{unit}{mark}": (f"cubic {one}", f"cubic {many}") for unit, (one, many) in _LENGTHS.items() for mark in "³3"},
    **{f"sq {unit}": (f"square {one}", f"square {many}") for unit, (one, many) in _LENGTHS.items()},
    **{f"cu {unit}": (f"cubic {one}", f"cubic {many}") for unit, (one, many) in _LENGTHS.items()},
}
"""One and several of a unit that follows a number."""

MAGNITUDES = {
    **{"k": "thousand", "m": "million", "mm": "million", "mn": "million", "b": "billion", "bn": "billion"},
    **{"t": "trillion", "tn": "trillion"},
}
CURRENCIES: dict[str, tuple[str, str]] = {
    **{"$": ("dollar", "dollars"), "€": ("euro", "euros"), "£": ("pound", "pounds"), "¥": ("yen", "yen")},
    **{"EUR": ("euro", "euros"), "GBP": ("pound", "pounds"), "JPY": ("yen", "yen"), "INR": ("rupee", "rupees")},
    **{"CHF": ("Swiss franc", "Swiss francs"), "US$": ("US dollar", "US dollars"), "USD": ("US dollar", "US dollars")},
    **dict.fromkeys(("C$", "CA$", "CAD"), ("Canadian dollar", "Canadian dollars")),
    **dict.fromkeys(("A$", "AU$", "AUD"), ("Australian dollar", "Australian dollars")),
    **dict.fromkeys(("NZ$", "NZD"), ("New Zealand dollar", "New Zealand dollars")),
    **dict.fromkeys(("HK$", "HKD"), ("Hong Kong dollar", "Hong Kong dollars")),
}

STREETS = {
    **{"Ave": "Avenue", "Blvd": "Boulevard", "Cir": "Circle", "Ct": "Court", "Dr": "Drive", "Hwy": "Highway"},
    **{"Pkwy": "Parkway", "Pl": "Place", "Rd": "Road", "Sq": "Square", "St": "Street", "Ter": "Terrace"},
}
DIRECTIONS = {
    **{"N": "North", "S": "South", "E": "East", "W": "West"},
    **{"NE": "Northeast", "NW": "Northwest", "SE": "Southeast", "SW": "Southwest"},
}
PLACES = {"apt": "apartment", "ste": "suite", "rm": "room", "ext": "extension", "bldg": "building", "fl": "floor"}
BEFORE_NUMBER = {
    **{"Pt.": "Part", "pt.": "part", "Ca.": "Circa", "ca.": "circa", "Hwy.": "Highway"},
    **{"p.": "page", "Hwy": "Highway", "Rte.": "Route", "Rte": "Route", "Rt.": "Route", "Sec.": "Section"},
    **{"sec.": "section", "Eq.": "Equation", "eq.": "equation", "Art.": "Article", "art.": "article"},
}
WORDS = {
    **{"e.g.": "for example", "i.e.": "that is", "a.k.a.": "also known as", "vs.": "versus", "vs": "versus"},
    **{"approx.": "approximately", "incl.": "including"},
    **{"CUDA": "Kooda", "JSON": "Jason", "YAML": "Yammel", "nginx": "engine X", "NGINX": "engine X"},
    **{"AAA": "triple A", "IEEE": "I triple E", "IPv4": "I P V four", "IPv6": "I P V six"},
    **{"WWI": "World War One", "WWII": "World War Two", "WW1": "World War One", "WW2": "World War Two"},
    **{"NaCl": "N A, C L", "NaOH": "N A, O H", "HCl": "H C L", "KCl": "K C L"},
}
"""Words that are not read as they are spelled; they may follow a space or a bracket."""

COUNTED = (
    *("copies", "customers", "downloads", "followers", "homes", "installs", "jobs", "lines", "members", "parameters"),
    *("params", "people", "plays", "records", "requests", "rows", "streams", "subscribers", "tokens", "units"),
    *("users", "viewers", "views", "visitors", "visits", "votes"),
)
"""What is counted in millions: "5M users"."""

STATES = {
    **{"AK": "Alaska", "AR": "Arkansas", "AZ": "Arizona", "CA": "California", "CO": "Colorado", "CT": "Connecticut"},
    **{"DE": "Delaware", "FL": "Florida", "GA": "Georgia", "IA": "Iowa", "ID": "Idaho", "IL": "Illinois"},
    **{"KS": "Kansas", "KY": "Kentucky", "LA": "Louisiana", "MD": "Maryland", "MI": "Michigan", "MN": "Minnesota"},
    **{"MO": "Missouri", "MS": "Mississippi", "MT": "Montana", "NC": "North Carolina", "ND": "North Dakota"},
    **{"NE": "Nebraska", "NH": "New Hampshire", "NJ": "New Jersey", "NM": "New Mexico", "NV": "Nevada"},
    **{"NY": "New York", "RI": "Rhode Island", "SC": "South Carolina", "SD": "South Dakota", "TN": "Tennessee"},
    **{"TX": "Texas", "UT": "Utah", "VA": "Virginia", "VT": "Vermont", "WA": "Washington", "WI": "Wisconsin"},
    **{"WV": "West Virginia", "WY": "Wyoming"},
}
"""States of the USA whose codes are no English words."""
OTHER_STATES = {
    **{"AL": "Alabama", "DC": "D C", "HI": "Hawaii", "IN": "Indiana", "MA": "Massachusetts", "ME": "Maine"},
    **{"OH": "Ohio", "OK": "Oklahoma", "OR": "Oregon", "PA": "Pennsylvania"},
}
"""Recognized before a ZIP code only."""

NUMBERED_IN_ROMAN = (
    *("Act", "Apollo", "Article", "Book", "Chapter", "Class", "Episode", "Final Fantasy", "Level", "Part", "Phase"),
    *("Round", "Scene", "Section", "Stage", "Super Bowl", "Title", "Type", "Volume", "World War"),
)
RULERS = (
    *("Alexander", "Benedict", "Catherine", "Charles", "Christian", "Edward", "Elizabeth", "Ferdinand", "Francis"),
    *("Frederick", "George", "Gustav", "Harald", "Henry", "Ivan", "James", "Leo", "Leopold", "Louis", "Margrethe"),
    *("Napoleon", "Nicholas", "Paul", "Peter", "Philip", "Pius", "Ramses", "Richard", "Wilhelm", "William"),
)
