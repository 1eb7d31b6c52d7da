"""Worker groups on Ray; this is the only package that imports `ray.train`."""
