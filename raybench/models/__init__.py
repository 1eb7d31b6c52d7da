"""Models described or built for both frameworks; no framework imported here."""
