"""Voices of a worker: catalog, stored voices, enrollment, voice packs. Needs no engine and no session."""
