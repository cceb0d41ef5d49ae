"""Text in, segments out: what is read aloud, in which pieces, and which original characters each piece says.

``pipeline.TextPipeline`` is the way in (one per utterance); ``alignment`` ties words to samples and cuts receipts;
``lexicon`` and ``normaliser`` are what the caller configures. Pure and sans-IO: no asyncio, no clock, no sound; nothing
here may import an engine, a session or a transport. The standard library only, but for the optional normaliser.
"""
