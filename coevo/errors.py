"""One error hierarchy, and the place where foreign exceptions turn into it.

Two families. *User errors* (`ConfigError`, `PrerequisiteError`, `StoreError`) stop a command: they are printed as three parts
(what happened, the value seen, what to do) without a traceback. *Episode errors* never stop anything: `coevo.episode.play` turns them
into a recorded status, because a failed episode is data.
"""

from __future__ import annotations

import asyncio
import difflib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = [
    "BudgetExceeded",
    "CoevoError",
    "ConfigError",
    "EpisodeError",
    "GraderError",
    "HarnessError",
    "InfraError",
    "ModelError",
    "PartialResultError",
    "PrerequisiteError",
    "SandboxError",
    "StoreError",
    "StoreOutage",
    "ToolError",
    "boundary",
    "nearest",
    "root_traceback",
]


class CoevoError(Exception):
    """Base of every error raised on purpose.

    Args:
        what: What happened, one clause.
        seen: The offending value, shown with `repr` unless it is already a string; None when no value explains it.
        fix: What the user can do: the flag, the command or the legal values.
    """

    exit_code = 1

    def __init__(self, what: str, *, seen: object = None, fix: str = "") -> None:
        super().__init__(what, seen, fix)
        self.what = what
        self.seen = seen
        self.fix = fix

    def __str__(self) -> str:
        parts = [self.what]
        if self.seen is not None:
            parts.append(f"seen: {self.seen if isinstance(self.seen, str) else repr(self.seen)}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        return "\n  ".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.seen, self.fix))


def _rebuild(kind: type[CoevoError], what: str, seen: object, fix: str) -> CoevoError:
    return kind(what, seen=seen, fix=fix)


class ConfigError(CoevoError, ValueError):
    """A configuration, harness folder or command line that can't be run as written."""

    exit_code = 2


class PrerequisiteError(CoevoError):
    """Something the machine lacks: a package, a port, a model endpoint, a key."""

    exit_code = 2


class StoreError(CoevoError, OSError):
    """The object store refused, or holds something that contradicts the request."""

    exit_code = 2


class BudgetExceeded(CoevoError):
    """A reservation would pass the budget; everything paid for so far stays stored."""


class PartialResultError(CoevoError):
    """A stage ended with more owed ids than its threshold allows; exit code 3."""

    exit_code = 3


class EpisodeError(CoevoError):
    """Base of what may go wrong inside one episode; recorded, never propagated past `play`."""


class ModelError(EpisodeError):
    """The model answered, but unusably (for example an empty completion or a refused prompt length)."""


class HarnessError(EpisodeError):
    """A harness component failed: it is disabled for the rest of the episode and counted against the harness."""


class ToolError(EpisodeError):
    """A tool call that the world refuses: bad arguments or an illegal action. The message is what the model reads."""


class SandboxError(HarnessError):
    """Evolved code passed a limit or asked for something outside its sandbox."""


class GraderError(EpisodeError):
    """The grader itself failed: the episode is infrastructure, not a task failure."""


class InfraError(EpisodeError):
    """Backend, network or worker trouble. Retried in a fresh world; never graded, never scored 0."""


class StoreOutage(StoreError, InfraError):
    """The object store does not answer, or refuses for load.

    Infrastructure in a fan-out: retried, counted by the circuit breaker, at last owed. In the driver it ends the command with exit code 3:
    what is committed stays, everything else is owed.
    """

    exit_code = 3


@contextmanager
def boundary(kind: type[CoevoError], what: str, *, fix: str = "") -> Iterator[None]:
    """Convert any foreign exception inside the block to `kind`, keeping the original as its cause.

    Errors of our own hierarchy and cancellation pass unchanged, so the innermost boundary attributes.
    """
    try:
        yield
    except (CoevoError, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise kind(what, seen=f"{type(error).__name__}: {error}", fix=fix) from error


def root_traceback(error: BaseException, *, limit_chars: int = 4000) -> str:
    """The traceback of `error` and its causes, its last `limit_chars` characters (the root cause is never only a CancelledError)."""
    text = "".join(traceback.format_exception(error))
    return text[-limit_chars:]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the closest known one, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names) or '(none)'}"
