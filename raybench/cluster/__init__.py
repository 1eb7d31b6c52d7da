"""Worker groups on Ray: the only importer of ray and ray.train."""
