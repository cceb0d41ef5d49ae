"""Which models are in memory: loaded when they are wanted, given up when nobody needs them."""
