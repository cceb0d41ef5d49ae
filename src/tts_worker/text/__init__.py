"""Text pipeline: incremental text in, speakable segments with source offsets out.

``pipeline.TextPipeline`` is the entry point, one per utterance. ``spoken_words`` maps words to samples and finds where
a playback report splits the text. ``lexicon`` and ``normalizer`` are configured by the caller. Everything here is
sans-IO and uses the standard library only, except for the optional normalizer.
"""
