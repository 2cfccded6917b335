"""The worker's side of a tool process: limits on itself, then one call after another.

Run by path and never imported: ``python -I -S worker.py TOOL LIMITS PARENT``. It knows the standard
library and nothing of this package. A call is a line of JSON, [number, argument], and so is its
answer, [number, kind, text].
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

Call = Callable[[dict[str, Any]], tuple[str, str]]
REQUEST_LIMIT = 1_000_000  # bytes; a line that is longer comes from nobody we know
NOBODY = 65534
PR_SET_PDEATHSIG = 1


def load(path: str) -> Call:
    """The function `call` of a tool's file."""
    spec = importlib.util.spec_from_file_location("tool", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.call


def bound(limits: dict[str, Any]) -> None:
    """Set the limits that hold for as long as the worker lives."""
    if os.geteuid() == 0:  # the system limits the processes of everybody but root
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError:  # a container without such a user: the other limits hold all the same
            pass
    for what, most in (
        (resource.RLIMIT_AS, limits["memory"] << 20),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.setrlimit(what, (most, most))
        except (ValueError, OSError):
            if sys.platform == "linux":  # elsewhere not every system has every limit
                raise


def end_with(parent: int) -> None:
    """Die when the parent does, even in the middle of a call, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was quicker than we
            os._exit(1)


def serve(call: Call, limits: dict[str, Any], requests: Any, answer: Callable[..., None]) -> None:
    """Answer calls until there are no more."""
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    while (line := requests.readline(REQUEST_LIMIT)).endswith(b"\n"):
        allowed = math.ceil(time.process_time() + limits["cpu"])
        soft = allowed if most == resource.RLIM_INFINITY else min(allowed, most)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, most))
        number, argument = json.loads(line)
        try:
            kind, text = call(argument)
        except MemoryError:  # answered further down, once the memory is free again
            kind, text = "memory", "this needs too much memory"
        except Exception as error:
            kind, text = "crashed", f"{type(error).__name__}: {error}"
        if len(text) > limits["output"]:
            kind = "too_long" if kind == "ok" else kind
            text = f"{text[: limits['output'] - 30]} (cut: the text is too long)"
        answer(number, kind, text)


def main(tool: str, limits: dict[str, Any], parent: int) -> None:
    """Take the pipes away from whatever the tool prints or reads, and serve."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)

    def answer(number: int, kind: str, text: str) -> None:
        answers.write(json.dumps([number, kind, text]).encode() + b"\n")

    try:
        call = load(tool)
        bound(limits)
        end_with(parent)
    except Exception as error:
        answer(0, "crashed", f"{tool} does not start: {type(error).__name__}: {error}")
        return
    answer(0, "ok", "ready")
    serve(call, limits, requests, answer)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
