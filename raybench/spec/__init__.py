"""Input of users: run specs, spaces, studies, metrics, and the files they stand in."""
