"""A generator of sentences as voice agents say them: appointments, orders, directions, numbers in words, small talk."""

from __future__ import annotations

import random

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("thir", "four", "fif", "six", "seven", "eigh", "nine")
_UNITS = (*_DIGITS, "ten", "eleven", "twelve", *(f"{teen}teen" for teen in _TEENS))
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

_WORDS = {
    "name": "Anna,Robert,Maria,David,Susan,Peter,Karen,Michael,Laura,James,Emily,Daniel,Sarah,Thomas,Julia,Henry",
    "surname": "Miller,Johnson,Baker,Cooper,Wilson,Taylor,Clark,Lewis,Walker,Young,Turner,Parker,Morgan,Bennett",
    "city": "Boston,Chicago,Denver,London,Dallas,Seattle,Austin,Portland,Berlin,Madrid,Dublin,Toronto,Atlanta,Phoenix",
    "day": "Monday,Tuesday,Wednesday,Thursday,Friday,Saturday,Sunday,tomorrow,next week,tonight",
    "month": "January,February,March,April,May,June,July,August,September,October,November,December",
    "part": "in the morning,in the afternoon,in the evening,at noon,before lunch,after work",
    "thing": "order,package,ticket,invoice,account,reservation,refund,delivery,password,subscription,payment,message,"
    "appointment,contract,phone number,address,suitcase,printer,laptop,key",
    "person": "doctor,manager,driver,teacher,nurse,engineer,lawyer,neighbor,sister,brother,mother,father,customer,"
    "technician,dentist,colleague",
    "place": "office,station,airport,hotel,library,hospital,kitchen,museum,bank,garden,market,restaurant,warehouse,"
    "school,park,bridge,harbor,theater",
    "adjective": "small,quiet,bright,heavy,broken,expensive,cheap,friendly,narrow,green,blue,yellow,wooden,modern,"
    "old,empty,famous,cold,warm,dangerous,simple,strange,beautiful",
    "verb": "check,cancel,confirm,change,send,repeat,update,open,close,find,move,repair,record,explain,compare,book",
    "past": "found,lost,opened,forgot,ordered,returned,sold,bought,painted,repaired,missed,received,watched,moved",
    "weather": "rain,snow,strong wind,sunshine,fog,a thunderstorm,light showers,clear skies",
    "food": "bread,cheese,chicken soup,rice,an apple,chocolate cake,fresh fish,two eggs,tomato salad,black coffee,"
    "orange juice,a glass of water",
    "polite": "please,if you like,as soon as possible,whenever you are ready,for you,right away",
    "opener": "Well,So,Okay,Sure,Actually,Of course,Thank you,All right,Unfortunately,Good news,Let me see,One moment",
    "way": "left,right,straight ahead,across the street,down the hall,around the corner",
}
_CHOICES = {key: words.split(",") for key, words in _WORDS.items()}

_TEMPLATES = (
    "Your appointment with the {person} is on {day} {part}.",
    "{opener}, I can {verb} the {thing} {polite}.",
    "{opener}, the {thing} will arrive on {day}.",
    "Could you {verb} my {thing}, {polite}?",
    "Would you like me to {verb} the {adjective} {thing}?",
    "Your {thing} number is {digits}.",
    "The total comes to {number} dollars and {number} cents.",
    "Please call {digits} to {verb} your {thing}.",
    "{name} {surname} {past} the {adjective} {thing} at the {place}.",
    "The {adjective} {place} is {number} miles from {city}.",
    "Turn {way} at the {place}, then go {way}.",
    "We expect {weather} in {city} on {day}, with {number} degrees.",
    "My {person} {past} {food} near the {place}.",
    "I would like {food} and {food}, please.",
    "It is {hour} o'clock, and the {place} is still {adjective}.",
    "The train to {city} leaves at {hour} {minute} {part}.",
    "On {month} {ordinal}, the {person} {past} a {adjective} {thing}.",
    "Did {name} {verb} the {thing} before {month}?",
    "How many {adjective} keys did the {person} find in the {place}?",
    "I'm sorry, the {person} can't {verb} your {thing} {polite}.",
    "Can you tell me where the {adjective} {place} is?",
    "You have {number} new messages from {name} {surname}.",
    "{opener}, {name} is waiting for you at the {place}.",
    "There were {number} people in the {place}, and {number} of them {past} the {thing}.",
    "What is the name of the {person} who {past} it?",
    "In nineteen {number}, {name} moved from {city} to {city}.",
    "Press {digit} to {verb} your {thing}, or {digit} to speak with a {person}.",
    "Is there anything else I can {verb} for you today?",
    "{opener}, that's {adjective}, but the {thing} is {adjective}.",
)


def number_in_words(number: int) -> str:
    """English words of 0 to 999,999."""
    if number < 20:
        return _UNITS[number]
    if number < 100:
        rest = number % 10
        return _TENS[number // 10 - 2] + (f"-{_UNITS[rest]}" if rest else "")
    base, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = number % base
    return f"{number_in_words(number // base)} {name}" + (f" {number_in_words(rest)}" if rest else "")


def generated_sentence(rng: random.Random) -> str:
    """Fill a random template."""
    text = rng.choice(_TEMPLATES)
    while "{" in text:
        before, _, rest = text.partition("{")
        key, _, after = rest.partition("}")
        text = before + _word(key, rng) + after
    return text[0].upper() + text[1:]


def _word(key: str, rng: random.Random) -> str:
    if key == "digits":
        return " ".join(_UNITS[rng.randrange(10)] for _ in range(rng.randint(3, 7)))
    if key == "digit":
        return _UNITS[rng.randrange(10)]
    if key == "hour":
        return _UNITS[rng.randint(1, 12)]
    if key == "minute":
        return number_in_words(rng.randrange(10, 60))
    if key == "number":
        return number_in_words(rng.choice((rng.randrange(100), rng.randrange(1000), rng.randrange(20_000))))
    if key == "ordinal":
        return rng.choice(("first", "second", "third", "fourth", "fifth", "tenth", "twentieth", "thirty-first"))
    return rng.choice(_CHOICES[key])
