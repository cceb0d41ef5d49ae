"""The CosyVoice networks behind the ``Engine`` protocol: many calls, one thread, sound chunk by chunk.

``CosyVoiceEngine`` (engine.py) is the way in. Who knows what: guard, alignment, runs and passage are plain arithmetic
over token counts; decode, render and voices hold tensors; lanes and graphs know the device; utterance ties one caller's
text to its sound; engine decides whose turn it is.
"""
