"""Worker groups on Ray; no other package imports `ray.train`."""
