"""Model directories and voices as files: formats that are read without executing anything, and how they get here.

The modules of formats (hyperyaml, safetensors, onnx_file) and of transfers (manifest, pull) need the standard library
only and know no model. ``commands`` is what the command line calls; it alone knows the engine.
"""
