"""Names to records, changed by compare-and-swap. Imports nothing else of ours."""
