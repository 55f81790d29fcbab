"""How a command ends: its exit code, and what the user reads when something went wrong.

0 done, 1 failed, 2 bad usage or configuration, 3 more owed episodes than allowed, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable

from coevo.errors import CoevoError

__all__ = ["INTERRUPTED", "guarded", "log_to_stderr"]

INTERRUPTED = 130
"""What shells give for Ctrl-C."""


def guarded(action: Callable[[], int], *, debug: bool = False) -> int:
    """Run `action`; its value, or the exit code of what it raised, told on standard error in three parts.

    Tracebacks appear only with `debug`: a wrong configuration is not a crash.
    """
    try:
        return action()
    except KeyboardInterrupt:
        _tell("interrupted; what is committed stays, the same command again resumes", debug=debug)
        return INTERRUPTED
    except CoevoError as error:
        _tell(f"error: {error}", debug=debug)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last border: whatever is left is a bug, and says so in one line
        hint = "" if debug else "\n  fix: run the same command with --debug for the traceback, and report it"
        _tell(f"error: this is a bug in coevo\n  seen: {type(error).__name__}: {str(error)[:600]}{hint}", debug=debug)
        return 1


def log_to_stderr(*, debug: bool) -> None:
    """Warnings, or everything with `debug`."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def _tell(text: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exc(file=sys.stderr)
    print(text, file=sys.stderr, flush=True)
