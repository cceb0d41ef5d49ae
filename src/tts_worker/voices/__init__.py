"""Voices of a worker: catalog, stored voices, enrolment, voice packs. Needs no engine and no session."""
