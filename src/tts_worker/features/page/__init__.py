"""The web page: the playground, its scripts, and the description of the API."""
