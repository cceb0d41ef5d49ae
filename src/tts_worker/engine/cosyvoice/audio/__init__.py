"""Speech tokens to PCM: chunks of an audio segment, the memory of the flow, the flow and the vocoder over them."""
