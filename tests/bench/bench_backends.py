"""Every instance of a split on both backends: reference solutions played on the fast one, their calls on the real one, all compared.

    python tests/bench/bench_backends.py website [--size standard] [--first 0] [--count 50]
    python tests/bench/bench_backends.py browser [--size standard] [--first 0] [--count 25]

Instances are those of the fixed split at full diversity; styles take turns. Prints instances, calls, differing observations and end states,
and milliseconds per call of each backend. A difference ends the program with exit status 1 and shows both sides.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from coevo.tasks.browser import chromium_family
from coevo.tasks.browser import family as browser
from coevo.tasks.family import Size, Style
from coevo.tasks.website import family as website
from coevo.tasks.website import http_family
from tests.contract.backends import compare_calls
from tests.contract.hygiene import split_instances
from tests.contract.walks import Walk

PAIRS = {"website": (website, http_family), "browser": (browser, chromium_family)}


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=sorted(PAIRS))
    parser.add_argument("--size", default="standard", choices=["standard", "long"])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    fast, real = PAIRS[given.family]
    instances = split_instances(fast, Size(given.size), 20)[given.first : given.first + given.count]
    calls, fast_s, both_s = 0, 0.0, 0.0
    for place, instance in enumerate(instances):
        started = time.perf_counter()
        walk = Walk(fast.open(instance))
        assert walk.follow(fast.policy(list(Style)[place % 2])) is None, instance.key
        fast_s += time.perf_counter() - started
        started = time.perf_counter()
        calls += compare_calls(fast, real, instance, walk.world.log)
        assert walk.world.grade().success, instance.key
        both_s += time.perf_counter() - started
    print(
        f"{given.family} {given.size}: {len(instances)} instances (from {given.first}), {calls} calls, 0 observations differ, 0 end states "
        f"differ; {1000 * both_s / calls:.1f} ms a call on both backends, {1000 * fast_s / calls:.2f} ms with the reference on the fast one"
    )


if __name__ == "__main__":
    main()
