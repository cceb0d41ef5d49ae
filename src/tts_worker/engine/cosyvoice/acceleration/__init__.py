"""How networks are executed: streams, captured graphs, other runtimes."""
