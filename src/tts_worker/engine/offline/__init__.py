"""Offline synthesis of one utterance at a time, the reference's algorithms, and the networks as ONNX graphs."""
