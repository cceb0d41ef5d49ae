"""The streaming CosyVoice engine: many utterances on one thread, audio chunk by chunk.

``CosyVoiceEngine`` (engine.py) is the entry point. alignment, audio_segment, guard and runs are plain arithmetic over
token counts; decode, render and voices hold tensors; streams and graphs wrap the device.
"""
