"""Results folders: writing, loading, tables and plots. No Ray, no framework."""
