"""A model directory: its configuration, its tensors and their checks, and the networks loaded from it."""
