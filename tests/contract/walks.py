"""Walks ship with the package: see `coevo.tasks.walks`."""

from coevo.tasks.walks import *  # noqa: F403 - one name for all tests
