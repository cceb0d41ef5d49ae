"""Scores, ratings, ratios and parts of a whole: "98/100", "4.5/5", "BP 120/80", "a 16:9 ratio"."""

from __future__ import annotations

from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.rules import reads_part

RULES = GRAMMAR.rules(
    r"""
twenty-four seven three sixty-five  /  (?<![\d/])24/7/365(?![\d/])
twenty-four seven  / -  (?<![\d/.,-])24[/-]7(?![\d/-])
fifty-fifty  / -  (?<![\d/.,-])50[/-]50(?![\d/-])
eighty-twenty  / -  (?<![\d/.,-])80[/-]20(?![\d/-])
nine eleven  /  (?<![\d/.,])9/11(?![\d/]|[.,]\d)
twenty twenty  / -  (?<![\d/.,-])20[/-]20(?= vision)
twenty twenty  /  \b[Vv]ision (?:is|was|of) «20/20»
@gap  /  (?<![\d/.,$])\d{1,2}«/»(?=[48] time\b)
@gap  /  (?<=\bin 4)/(?=4\b)
@gap  /  (?<![\d/.,$])\d{1,3}«/»(?=\d{3,4} ?(?:Mbps|Mb|Gb|Base))
out of  /  (?<![\d/.,$])(?!1/)\d{1,3}(?:\.\d)?« ?/ ?»100(?![\d/%]|[.,]\d| ?(?:Mbps|Mb|mg))
out of  /  \b<score scored rate rated rating ratings got gave give star stars pain>\b[^\d\n.!?]{0,25}
    \d{1,3}(?:\.\d)?« ?/ ?»(?:5|10|20|\d{2,3})(?![\d/])
out of  /  (?<![\d/.,$])\d\.\d{1,2}«/»(?=[45]\.0(?!\d))
out of  /  (?<![\d/.,$])\d[.,]\d«/»(?:5|10)(?![\d/]|[.,]\d)
out of  /  (?<![\d/.,$])\d«/»(?:5|10)(?= stars?\b)
out of  /  \b(?:[Aa]n?|[Ss]olid) \d(?:\.\d)?« ?/ ?»10(?![\d/]|[.,]\d| (?:chance|of|inch|mile|second))
over  /  \b(?:BP|[Pp]ressure|[Rr]eading)\b[^\d\n.!?]{0,20}\d{2,3}« ?/ ?»(?=\d{2,3}(?!\d))
over  /  (?<![\d/.,$])(?:9\d|1\d\d)«/»(?=[5-9]\d(?![\d/]|[.,]\d))
to  :  \b(?:ratio|odds)(?: (?:of|is|was|are|at|about))?:? \d{1,3}«:»(?=\d{1,3}(?![\d:]))
to  :  (?<![\d:.,])\d{1,3}«:»(?=\d{1,3} (?:ratio|odds|mix|split|scale|aspect|display)\b)
to  :  (?<![\d:.,])\d{1,3}«:»(?=(?:\d|\d{3})(?![\d:]))
of  /  \b<page pages step part slide chapter lesson question> \d{1,3}« ?/ ?»\d{1,4}(?![\d/])
""",
    {"gap": reads_part(lambda _: " ")},
)
WHOLES = GRAMMAR.rules(
    r"""
out of  /  (?<![\d/.,$])(?P<n>\d{1,2})«/»(?P=n)(?![\d/]|[.,]\d)
"""
)
