"""Abbreviations and acronyms. None that is also a word is expanded where it may be that word: "no.", "fig.", "Sun."."""

from __future__ import annotations

from tts_worker.text.reading.english.grammar import GRAMMAR

RULES = GRAMMAR.rules(
    r"""
pound  #  \b<press hit then dial enter>(?: the)? «#»(?![\w*])
star  *  \b<press hit then dial enter>(?: the)? «\*»(?![\w*])
star  *  (?<=[Dd]ial )\*(?=\d)
pound  #  (?<!\w)#(?= (?:for|to|key|when|sign|after|or)\b)
number  #  (?<!\w)#(?= ?of\b)
number  no  (?<=\w )no\.(?= is\b)
number  #  (?<!\w)#(?=[A-Z]{1,3}-?\d)|(?<=[A-Za-z])#(?= ?[A-Z\d])
pound  #  (?<=\d)#
floor  fl  (?<=\d(?:st|nd|rd|th)) fl\b\.?
minute  min  (?<=\d(?:st|nd|rd|th)) min\b
number  no
    \b<case order account invoice reference ref serial model part policy flight claim ticket item confirmation>[ ]
    «no\.»(?= [a-z])
<WORDS>  <WORDS>  (?<![\w.@/-])<WORDS>(?!\w|\.\w|/|(?<=/)\w)
versus  v  \b[A-Z]\w+ «v\.»(?= [A-Z])
<BEFORE_NUMBER>  <BEFORE_NUMBER>  (?<![\w.])«<BEFORE_NUMBER> ?»(?=[#$]?\d|(?<=\. )[A-Z]{1,3}-?\d|(?<=\.)[A-Z]{1,3}-?\d)
<BEFORE_NUMBER>  no nos  (?<![\w.])«(?:[Nn]os?\.) ?»(?=[A-Z]{1,4}-\d)
<BEFORE_NUMBER>  <BEFORE_NUMBER>  (?<![\w.])«(?:Art|Vol|Ch|Sec|Pt|Fig)\. ?»(?=[IVXLC]{1,6}\b)
edition  ed  (?<=\d(?:st|nd|rd|th)) «ed\.?»(?![\w])
<TITLES>  <TITLES>  \b«(?:Mrs?|Ms|Dr|Prof|Gen|Gov|Sen|Rep|Capt|Lt|Col|Sgt|Cmdr|Rev|Hon|Pres|Supt|Cpl|Maj|Adm|Msgr
    |Atty|Insp)\.»(?= ?[A-Z])
<TITLES>  <TITLES>  \b«(?:Mrs?|Ms|Dr|Prof)»(?= [A-Z])
<TITLES>  st  (?:\A|\b(?:of|in|at|to|from|near|and) )«st\.»(?= [a-z]{3,})
<TITLES>  mt  \bMt\.(?!\w)
<TITLES>  st mt ft ste pt  \b«(?:St|Mt|Ft|Ste|Pt)\.?»(?= [A-Z][a-z])
<SHORT_WORDS>  <SHORT_WORDS>  (?<![\w.@/-])<SHORT_WORDS_ANY>\.(?=,| [a-z\d$#(&\"“]|[ ](?:[A-Z]\b|<SHORT_WORDS_ANY>))
<SHORT_WORDS>  <SHORT_WORDS>  (?<![\w.@/-])«<SHORT_WORDS_ANY>»(?=\.)
<BEFORE_WORD>  <BEFORE_WORD>  (?<![\w.@/$-])(?<!\d )<BEFORE_WORD_ANY>\.(?= [a-z])
<SHORT_WORDS>  <SHORT_WORDS>  (?<![\w.@/-])(?:approx|appts?|depts?|acct|pkg|qty|govt|mgmt)(?![\w.])
large  lg  (?<=\d )lg\.(?= [A-Z])
small  sm  (?<=\d )sm\.(?= [A-Z])
ounces  oz  (?<=\d )oz\.(?= [a-z])
"""
)
