"""Reading: what is written becomes the words that are spoken, for every voice alike.

``verbalizer.Verbalizer`` is the entry point, one per utterance. Each language has a function ``rewrites(text, first)``
that finds the tokens of a text that are not read as they are spelled (numbers, money, dates, signs, abbreviations), by
class, and says which words stand for them.

``english`` has tables (units, currencies, abbreviations) and a file of rules for each class of token; ``rules``
explains them. Other languages are read by the feature ``languages``, which ``further`` finds.
"""
