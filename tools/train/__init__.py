"""Training of CosyVoice bundles and of the CPU engine's voices: ``python -m tools.train``, see tools/train/README.md.

The networks are the engine's own modules, so that trained weights load as they are. ``config`` has the settings;
``text``, ``teacher``, ``codes`` and ``speech_data`` make the data; ``lm``, ``flow``, ``vocoder`` and
``filters`` (a vocoder that filters its excitation) are the stages;
``trainer`` runs a stage and ``runner`` all of them; ``pack`` writes the bundle. ``fast`` trains voices of the CPU
engine, with the same ``trainer``, ``spectral`` and ``text``.
"""
