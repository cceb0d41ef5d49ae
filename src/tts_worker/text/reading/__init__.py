"""Reading: what is written becomes the words that are spoken, for every voice alike.

``verbalizer.Verbalizer`` is the entry point, one per utterance. Each language has a function ``rewrites(text, first)``
that finds the tokens of a text that are not read as they are spelled (numbers, money, dates, signs, abbreviations), by
class, and says which words stand for them.

``tables`` has a file for each language: units, currencies, abbreviations, and patterns. ``english`` has a file of rules
for each class of token; ``rules`` explains them. ``chinese`` and ``worldwide`` scan a text from left to right by the
rules of their tables. ``worldwide`` reads eight languages with num2words and CLDR (``worldwide_words``); ``russian``
knows the cases of Russian.
"""
