"""How computations run: settings, streams of the device, captured graphs, and the choice of accelerated paths."""
