"""A tool for the tests, which does what no tool of the package can."""

import contextlib
import os
import resource
import sys
import time

CALLS = []


def call(argument):
    CALLS.append(1)
    what = argument["what"]
    if what == "echo":
        return "ok", argument["text"]
    if what == "count":
        return "ok", str(len(CALLS))
    if what == "sleep":
        time.sleep(argument["seconds"])
        return "ok", "slept"
    if what == "loop":
        while True:
            pass
    if what == "hog":
        return "ok", str(len([bytearray(1 << 20) for _ in range(1 << 20)]))
    if what == "talk":
        for stream in (1, 2):
            os.write(stream, b"[1, 'ok', 'a lie']\n" * 10_000)
        print("x" * 100_000, input and sys.stdin.read())
        return "ok", "said it"
    if what == "flood":
        for stream in range(3, 16):
            with contextlib.suppress(OSError):
                os.write(stream, b"x" * 1_000_000)
        return "ok", "flooded"
    if what == "lie":
        for stream in range(3, 16):
            with contextlib.suppress(OSError):
                os.write(stream, argument["line"].encode())
        return "ok", "lied"
    if what == "open":
        held = []
        try:
            while len(held) < 1000:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            number = len(held)
            for file in held:
                os.close(file)
            return "ok", f"{number} {error.strerror}"
        return "ok", "no limit"
    if what == "write":
        with open(argument["path"], "wb", 0) as file:
            file.write(b"x")
        return "ok", "written"
    if what == "bomb":
        made = 0
        try:
            while made < 50:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                made += 1
        except OSError as error:
            return "ok", f"{made} {error.strerror}"
        return "ok", f"{made} no limit"
    if what == "die":
        os.kill(os.getpid(), argument["signal"])
    if what == "exit":
        os._exit(7)
    if what == "limits":
        return "ok", " ".join(str(resource.getrlimit(kind)[0]) for kind in argument["kinds"])
    raise LookupError(what)
