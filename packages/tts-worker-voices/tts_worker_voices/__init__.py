"""Voice packs of the CPU engine with their models, in the folder ``voicepacks/hibari``."""
