"""Ray Tune drives a search: the only importer of ray.tune."""
