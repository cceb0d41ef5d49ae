"""The talking agent: a page on which one speaks with a language model, or with a script (``tts-worker agent``)."""
