"""Model directories as files: downloads, and format readers that never run code. Needs the standard library only."""
