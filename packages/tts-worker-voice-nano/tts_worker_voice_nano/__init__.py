"""The model directory ``cosyvoice2-nano-en``, a demonstration voice, in the folder ``voicepacks/nano``."""
