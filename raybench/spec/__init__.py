"""User input: run specs, search spaces, studies, metrics, and the files that contain them."""
