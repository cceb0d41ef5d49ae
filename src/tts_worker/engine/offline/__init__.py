"""One utterance at a time: the offline path, the reference's own ways, and the networks as ONNX graphs."""
