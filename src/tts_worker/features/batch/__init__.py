"""``/v1/batch``: many texts in one request, synthesized behind calls and kept for a while."""
