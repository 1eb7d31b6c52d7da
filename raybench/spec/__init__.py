"""What a user says: run specs, spaces, studies, metrics, and the files they stand in."""
