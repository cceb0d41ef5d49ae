"""Voice conversion: speech in, the same speech in another voice out."""
