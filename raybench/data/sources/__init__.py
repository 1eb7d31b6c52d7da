"""Loaders of datasets: folders of images, tables, texts, arrays, and datasets of libraries."""
