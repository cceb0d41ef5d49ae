"""Reading: what is written becomes the words that are spoken, for every voice alike.

``verbalizer.Verbalizer`` is the entry point, one per utterance. Each language has a function ``rewrites(text, first)``
that finds the tokens of a text that are not read as they are spelled (numbers, money, dates, signs, abbreviations), by
class, and says which words stand for them.
``worldwide`` reads eight languages with num2words and CLDR: tokens there, ``worldwide_words`` has the words,
``worldwide_tables`` what the libraries lack.
"""
