"""kvcanary: an integrity auditor for paged KV caches."""

__version__ = "0.1.0"
