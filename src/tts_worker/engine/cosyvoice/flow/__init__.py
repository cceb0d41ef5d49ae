"""Speech tokens to mel frames by flow matching: ``model.Flow`` and the state that lets it run chunk by chunk."""
