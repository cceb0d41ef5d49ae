"""Voice packs of Mandarin voices, which share a network of their own."""
