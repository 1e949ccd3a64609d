"""Immutable bytes under names, in memory, in local files, or in a bucket."""
