"""Model directories and voices as files: downloads, format readers that never run code, and the commands on them.

The format modules (hyperyaml, safetensors_header, onnx_file) and the download modules (manifest, pull) need the
standard library only. Only ``commands`` uses the engine.
"""
