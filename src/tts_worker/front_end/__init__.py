"""CosyVoice's front end for Chinese and English: wetext and the rules of the reference, for its parity.

The worker's own reading is ``text.reading``; of this package only ``rules.shape`` follows it.
"""
