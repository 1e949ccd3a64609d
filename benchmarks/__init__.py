"""The engine's speed and size, each figure beside a baseline measured in the same run.

    python -m benchmarks [--only put,get] [--quick] [--json]

Ratios are what the bars speak of: this machine's absolute figures are beside them for orientation.
"""
