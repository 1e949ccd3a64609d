"""Version control for data lakes: an LSM engine on your own object store."""

__version__ = "0.1.0"
