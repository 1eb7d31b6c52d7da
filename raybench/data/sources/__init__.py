"""Loaders of users' data: folders of images, tables, texts, arrays, and datasets of libraries."""
