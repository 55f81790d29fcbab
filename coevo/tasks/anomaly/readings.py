"""Hourly readings with a known peak, shift, gap or standstill in the hours of the check, and decoys in hours that nobody should look at."""

from __future__ import annotations

from random import Random

from coevo.tasks.anomaly.rulebook import DOWNWARD, HOURS, Rules, Window

__all__ = ["Series"]

_LEVELS = {"temperature": (18, 70), "pressure": (3, 9), "vibration": (5, 12), "humidity": (45, 65)}
_DIGITS = {"temperature": 1, "pressure": 2, "vibration": 2, "humidity": 1}
_NOISE = 0.1
"""Half width of the noise, in first limits of the kind."""

Days = tuple[tuple[float | None, ...], ...]


class Series:
    """Draws the readings of devices, `days` of them, the day of the check first."""

    def __init__(self, random: Random, rules: Rules, *, days: int) -> None:
        self._random, self._rules, self._days = random, rules, days
        check, baseline = rules.check, rules.baseline
        taken = {*((0, hour) for hour in _hours(check)), *((baseline.day, hour) for hour in _hours(baseline))}
        self._free = [(day, hour) for day in range(days) for hour in range(HOURS) if (day, hour) not in taken]

    def plain(self, kind: str, unit: str) -> Days:
        """Noise around a level, with a decoy peak outside the windows now and then, and a missing reading or two."""
        return self._finish(self._noise(kind), kind, unit)

    def peaked(self, kind: str, unit: str, deviation: float, offset: float) -> Days:
        """One to three hours of the check as far from the level as `deviation` (in the kind's unit); `offset` lies on the whole check."""
        days = self._noise(kind)
        level = self._level
        sign = -1 if kind == DOWNWARD else 1
        hours = self._random.sample(_hours(self._rules.check), self._random.randint(1, 3))
        for place, hour in enumerate(hours):
            days[0][hour] = level + sign * deviation * (1 if place == 0 else self._random.uniform(0.5, 0.95))
        self._add(days, offset)
        return self._finish(days, kind, unit, keep=hours)

    def shifted(self, kind: str, unit: str, shift: float, offset: float) -> Days:
        """All readings of the check moved by `shift` in the watched direction."""
        days = self._noise(kind)
        self._add(days, offset + (-shift if kind == DOWNWARD else shift))
        return self._finish(days, kind, unit)

    def stuck(self, kind: str, unit: str) -> Days:
        """One value in all hours of the check."""
        days = self._noise(kind)
        value = days[0][self._rules.check.start]
        for hour in _hours(self._rules.check):
            days[0][hour] = value
        return self._finish(days, kind, unit)

    def with_gaps(self, days: Days, count: int) -> Days:
        """`count` readings of the check missing, and no others of it."""
        hours = set(self._random.sample(_hours(self._rules.check), min(count, len(_hours(self._rules.check)) - 1)))
        level = next(one for one in days[0] if one is not None)
        first = tuple(None if hour in hours else level if one is None else one for hour, one in enumerate(days[0]))
        return (first, *days[1:])

    def _noise(self, kind: str) -> list[list[float]]:
        random, low, high = self._random, *_LEVELS[kind]
        self._level = random.uniform(low, high)
        width = 2 * _NOISE * self._rules.limit(kind)[0]
        draw = random.random
        days = [[self._level + width * (draw() - 0.5) for _ in range(HOURS)] for _ in range(self._days)]
        if random.random() < 0.5:
            for day, hour in random.sample(self._free, min(2, len(self._free))):
                days[day][hour] += random.choice((1, -1)) * random.uniform(1, 2) * self._rules.limit(kind)[1]
        return days

    def _add(self, days: list[list[float]], amount: float) -> None:
        for hour in _hours(self._rules.check):
            days[0][hour] += amount

    def _finish(self, days: list[list[float]], kind: str, unit: str, *, keep: list[int] | None = None) -> Days:
        """Rounded, in the device's unit, up to two readings missing that nothing depends on."""
        digits = _DIGITS[kind]
        found: list[list[float | None]] = [[round(one * 1.8 + 32 if unit == "F" else one, digits) for one in readings] for readings in days]
        spare = [hour for hour in _hours(self._rules.check) if hour not in (keep or ())]
        for hour in self._random.sample(spare, min(self._random.choice((0, 0, 1, 2)), self._rules.gaps - 1)):
            found[0][hour] = None
        return tuple(map(tuple, found))


def _hours(window: Window) -> range:
    return range(window.start, window.end + 1)
