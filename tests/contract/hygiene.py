"""The checks ship with the package: see `coevo.tasks.hygiene`."""

from coevo.tasks.hygiene import *  # noqa: F403 - one name for all tests
