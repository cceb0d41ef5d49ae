"""Features: each folder adds something to the worker and can be deleted. The core imports none of them."""
