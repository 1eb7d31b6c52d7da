"""Datasets from what users have: folders of images, tables, arrays, sets of libraries."""
