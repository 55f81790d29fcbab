"""Detectors: each module one family of deterministic evidence over a failed episode; the tables are in `coevo.localize.evidence`."""
