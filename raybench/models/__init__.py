"""Models for both frameworks, described without importing a framework."""
