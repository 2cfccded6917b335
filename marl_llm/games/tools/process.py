"""Our side of a tool process: start it, call it, end it.

Who is to blame for a call without a result is part of the result. A query that used up its
processor time, its memory or the length of a result is the caller's fault. A worker that died, or
that ran out of time by the clock before its processor time was used, is the machine's: what hangs
on that call is worth nothing, and nobody should be paid for it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from marl_llm.errors import ConfigError

WORKER = Path(__file__).with_name("worker.py")
REQUEST_LIMIT = 900_000  # bytes of one call, a little less than the worker takes
_KEPT = ("LD_LIBRARY_PATH", "LANG")  # of the environment; a worker has no use for secrets


class Kind(StrEnum):
    """What came of a call."""

    OK = "ok"
    TIMEOUT = "timeout"  # it ran too long
    CRASHED = "crashed"  # the worker died, or its tool has a fault
    MEMORY = "memory"  # it asked for too much
    TOO_LONG = "too_long"  # the text is what is left of a longer one, and says so
    REFUSED = "refused"  # the tool does not do this


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gives: the text, or why there is none."""

    kind: Kind
    text: str
    infra: bool = False  # the machine is to blame, not what was asked

    @property
    def answered(self) -> bool:
        """Whether the text comes from the tool's data."""
        return self.kind in (Kind.OK, Kind.TOO_LONG)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one worker may use."""

    wall: float = 20.0  # seconds of a call by the clock
    cpu: int = 2  # seconds of a call on the processor, counted in whole ones: 2 may become 3
    memory: int = 256  # MiB of address space, Python's own 30 or so among them
    output: int = 2_000  # characters of a result
    files: int = 16  # open at once
    start: float = 60.0  # seconds by the clock until it is ready

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"limits.{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool by its file, and what it may use."""

    path: str
    limits: Limits = field(default_factory=Limits)


class ToolProcess:
    """One worker, started at the first call and again whenever it has died.

    Threads may share it: calls follow one another. A process that was forked must not, and makes
    its own; `shared` sees to that.
    """

    def __init__(self, tool: Tool):
        """Start nothing yet."""
        self.tool = tool
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._number = 0  # of the latest call to this worker
        self.lost = 0  # workers that ended, or had to be ended, by no fault of a call

    @property
    def pid(self) -> int | None:
        """Of the worker; None = none is alive now."""
        worker = self._worker
        return worker.pid if worker is not None and worker.poll() is None else None

    def call(self, argument: Mapping[str, Any]) -> Result:
        """Call the tool. Always gives a result, whatever happens to the worker."""
        line = json.dumps(argument)
        if len(line) > REQUEST_LIMIT:
            return Result(Kind.REFUSED, f"this is too long: {len(line)} of {REQUEST_LIMIT} bytes")
        with self._lock:
            try:
                return self._call(line)
            except BaseException:  # Ctrl-C too: an answer that is still to come would be the next's
                self._end()
                raise

    def close(self) -> None:
        """End the worker. A later call starts another one."""
        with self._lock:
            self._end()

    # Inside.

    def _call(self, argument: str) -> Result:
        if self._worker is not None and self._worker.poll() is not None:
            self.lost += 1
            self._end()  # it died while nobody asked it anything
        if self._worker is None:
            started = self._start()
            if started.kind is not Kind.OK:
                self.lost += 1
                return started
        self._number += 1
        line = f"[{self._number}, {argument}]\n".encode()
        result = self._exchange(line, time.monotonic() + self.tool.limits.wall, "call")
        self.lost += result.infra
        if result.infra or result.kind is Kind.MEMORY or self.pid is None:
            self._end()
        return result

    def _start(self) -> Result:
        limits = self.tool.limits
        words = [json.dumps(asdict(limits)), str(os.getpid())]
        self._worker = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WORKER), self.tool.path, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            cwd="/",
            start_new_session=True,  # so that Ctrl-C reaches us alone, and a kill all of its own
        )
        self._read, self._number = b"", 0
        for pipe in (self._worker.stdin, self._worker.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        result = self._exchange(b"", time.monotonic() + limits.start, "start")
        if result.kind is not Kind.OK:
            self._end()
        return result

    def _exchange(self, line: bytes, deadline: float, what: str) -> Result:
        """Send a line, or nothing, and read one."""
        worker = self._worker
        assert worker is not None and worker.stdin is not None and worker.stdout is not None
        # A letter is at most 12 bytes of JSON.
        longest = 12 * self.tool.limits.output + 1_000
        gate = select.poll()
        gate.register(worker.stdout.fileno(), select.POLLIN)
        if line:
            gate.register(worker.stdin.fileno(), select.POLLOUT)
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            ready = gate.poll(max(0.0, left) * 1000)
            if not ready:
                return Result(Kind.TIMEOUT, f"no end of the {what} in time", infra=True)
            for pipe, _ in ready:
                if pipe == worker.stdout.fileno():
                    read = os.read(pipe, 65536)
                    self._read += read
                    if not read:
                        return self._died()
                    if len(self._read) > longest:
                        return Result(Kind.CRASHED, "the worker answers without an end", infra=True)
                    continue
                try:
                    line = line[os.write(pipe, line) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    return self._died()
                if not line:
                    gate.unregister(pipe)
        answer, _, self._read = self._read.partition(b"\n")
        try:
            number, kind, text = json.loads(answer)
            if number == self._number:
                return Result(Kind(kind), str(text), infra=kind == Kind.CRASHED)
        except (ValueError, TypeError):
            pass
        return Result(Kind.CRASHED, "the worker's answer cannot be read", infra=True)

    def _died(self) -> Result:
        """Why there is no answer any more."""
        worker = self._worker
        assert worker is not None
        try:
            code = worker.wait(self.tool.limits.wall)
        except subprocess.TimeoutExpired:
            return Result(Kind.CRASHED, "the worker has fallen silent", infra=True)
        if code == -signal.SIGXCPU:
            return Result(Kind.TIMEOUT, f"stopped after {self.tool.limits.cpu} s of computing")
        return Result(Kind.CRASHED, f"the worker died with code {code}", infra=True)

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        if worker.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            assert pipe is not None
            pipe.close()


# All workers of this process, by process: after a fork the child finds none and makes its own. Not
# part of a game, since a game is copied, pickled and forgotten and a process is not.
_SHARED: dict[tuple[int, Tool], ToolProcess] = {}


def shared(tool: Tool) -> ToolProcess:
    """The worker of this tool that all of this process share; its limits are part of the key."""
    key = (os.getpid(), tool)
    return _SHARED.get(key) or _SHARED.setdefault(key, ToolProcess(tool))


def lost() -> int:
    """How many workers of this process were lost by no fault of a call, since it began."""
    return sum(tool.lost for (owner, _), tool in _SHARED.items() if owner == os.getpid())


@atexit.register
def close() -> None:
    """End all workers of this process."""
    for (owner, _), process in list(_SHARED.items()):
        if owner == os.getpid():
            process.close()
