"""Analyses of a study: DataFrame in, DataFrame out; one question each."""
