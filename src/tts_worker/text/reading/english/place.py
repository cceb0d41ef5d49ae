"""Streets, states, rooms: abbreviations of addresses."""

from __future__ import annotations

from tts_worker.text.reading.english.grammar import GRAMMAR

RULES = GRAMMAR.rules(
    r"""
<PLACES>  <PLACES>  \b<apt ste rm ext bldg fl>\.(?= ?(?:#?\d|[A-Z]\b))
<PLACES>  <PLACES>  \b(?:<apt ext>|Ste|Bldg|Rm|Fl)(?= #?\d)|\b(?:Apt|Bldg)(?= [A-HJ-Z]\b)
<DIRECTIONS>  <DIRECTIONS>  (?<![\w.,-])\d{1,6} «<DIRECTIONS>\.?»
    (?= (?:\d{1,3}(?:st|nd|rd|th)|[A-Z][a-z]+)(?: [A-Z][a-z]+)? <STREET>\b)
<STREETS>  <STREETS>
    (?<![\w.,-])\d{1,6}[A-Z]?(?: (?:[NS][EW]|[NSEW])\.?)?(?: (?:\d{1,3}(?:st|nd|rd|th)|[A-Z][a-z]+\.?)){1,4}?[ ]
    «<STREETS>\b(?:\.(?=,| [a-z\d#]))?»(?!(?<=Dr)\.? [A-Z])
<STREETS>  <STREETS>  (?:[A-Z][a-z]+|\d(?:st|nd|rd|th)) «(?:Ave|Blvd|Hwy|Pkwy|Rd|Ln|Expy)\b(?:\.(?=,| [a-z\d#]))?»
<STREETS>  dr  \b(?:on|at|to|near|of|off|down|along) [A-Z][a-z]+ «Dr\b\.?»(?=,| [a-z])
<STREETS>  st  \b[A-Z][a-z]+ «St\.»(?=,)
<DIRECTIONS>  n s e w  (?<=°)[ ]?(?P<name>[NSEW])\b
<DIRECTIONS>  <DIRECTIONS>  (?<![\w.])«(?:[NS][EW]|[NSEW])\.?»(?= \d{1,3}(?:st|nd|rd|th) <STREET>\b)
<DIRECTIONS>  <DIRECTIONS>  (?<![\w.])«(?:[NS][EW]|[NSEW])\.»(?= (?:[A-Z][a-z]+ ){1,2}<STREET>\b)
<STREETS>  hwy expy  \b«hwy|Expy»(?=[,.]| [A-Z\d])
<STREETS>  st  (?:\b(?:on|at|to|near|of|off|down|along|and|from|onto) (?:[NSEW]\.? )?[A-Z][a-z]+|\d(?:st|nd|rd|th))[ ]
    «St\b(?:\.(?=,| [a-z\d#]))?»(?! [A-Z])
<DIRECTIONS>  <DIRECTIONS>  \b<STREET>\.? «[NS][EW]|[NSEW]»\b(?!['’.]\w)
<STATES>  <STATES>  \b[A-Z][a-z]+, «<STATES>»(?=[,;.!?]? |[,;.!?]?$)
<ALL_STATES>  5+  (?<=[a-z.,] )«<ALL_STATES>»(?=,? \d{5}\b)
"""
)
