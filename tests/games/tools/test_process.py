"""A tool process gives a typed result whatever its tool does, and comes back from the dead."""

import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from marl_llm.errors import ConfigError
from marl_llm.games.tools import process
from marl_llm.games.tools.process import Kind, Limits, Result, Tool, ToolProcess

NAUGHTY = str(Path(__file__).with_name("naughty.py"))
ROOT = Path(__file__).parents[3]
LIMITS = Limits(wall=60.0, cpu=1, memory=128, output=200)


@pytest.fixture(scope="module")
def tool():
    made = ToolProcess(Tool(NAUGHTY, LIMITS))
    yield made
    made.close()


@pytest.fixture
def hasty():
    made = ToolProcess(Tool(NAUGHTY, Limits(wall=0.3)))
    yield made
    made.close()


def alive(pid):
    """Whether a process runs; one that waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid, seconds=20.0):
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def works(tool):
    return tool.call({"what": "echo", "text": "hello"}) == Result(Kind.OK, "hello")


def test_a_worker_starts_at_the_first_call_and_serves_many(tool):
    made = ToolProcess(Tool(NAUGHTY, LIMITS))
    assert made.pid is None
    assert [made.call({"what": "count"}).text for _ in range(200)] == [
        str(i + 1) for i in range(200)
    ]
    assert made.pid not in (None, os.getpid())
    pid = made.pid
    made.close()
    assert made.pid is None and not alive(pid)
    made.close()
    assert made.call({"what": "count"}).text == "1"  # closed is not broken
    made.close()


@pytest.mark.parametrize("text", ["", "häßlich \U0001f0a1", "a\nb\r\n\x00", "\ud800", "x" * 200])
def test_any_text_comes_back_as_it_went(tool, text):
    assert tool.call({"what": "echo", "text": text}) == Result(Kind.OK, text)


def test_a_long_result_is_cut_and_says_so(tool):
    result = tool.call({"what": "echo", "text": "x" * 100_000})
    assert result == Result(Kind.TOO_LONG, "x" * 170 + " (cut: the text is too long)")
    assert len(result.text) <= LIMITS.output and result.answered and works(tool)


def test_a_call_that_is_too_long_is_refused(tool):
    result = tool.call({"what": "echo", "text": "x" * process.REQUEST_LIMIT})
    assert result.kind is Kind.REFUSED and not result.infra and not result.answered
    result = tool.call({"what": "echo", "text": "x" * (process.REQUEST_LIMIT - 100)})
    assert result.kind is Kind.TOO_LONG  # more than a pipe holds at once


def test_an_endless_loop_is_stopped_and_is_the_callers_fault(tool):
    started = time.monotonic()
    result = tool.call({"what": "loop"})
    assert result == Result(Kind.TIMEOUT, "stopped after 1 s of computing")
    assert time.monotonic() - started < LIMITS.wall
    assert works(tool)


def test_processor_time_is_counted_per_call(tmp_path):
    """Many calls may compute for longer than one may: here 3 times 0.7 s."""
    burn = """
import time
def call(argument):
    until = time.process_time() + 0.7
    while time.process_time() < until:
        pass
    return "ok", ""
"""
    path = tmp_path / "burn.py"
    path.write_text(burn)
    made = ToolProcess(Tool(str(path), LIMITS))
    try:
        assert [made.call({}).kind for _ in range(3)] == [Kind.OK] * 3
    finally:
        made.close()
        path.unlink()


def test_a_worker_that_only_waits_is_killed_and_is_the_machines_fault(hasty):
    assert works(hasty)
    pid = hasty.pid
    result = hasty.call({"what": "sleep", "seconds": 60})
    assert result.kind is Kind.TIMEOUT and result.infra
    assert gone(pid) and hasty.pid is None
    assert works(hasty)


def test_a_memory_hog_is_stopped(tool):
    result = tool.call({"what": "hog"})
    assert result == Result(Kind.MEMORY, "this needs too much memory")
    assert works(tool)


def test_what_a_tool_prints_or_reads_is_no_answer(tool):
    assert tool.call({"what": "talk"}) == Result(Kind.OK, "said it")
    assert works(tool)


@pytest.mark.parametrize(
    "argument",
    [
        {"what": "flood"},
        {"what": "lie", "line": "[1, 2]\n"},
        {"what": "lie", "line": "5\n"},
        {"what": "lie", "line": '[1000000, "ok", "of another call"]\n'},
        {"what": "lie", "line": '[1, "fine", "no such kind"]\n'},
    ],
)
def test_a_worker_that_breaks_the_protocol_is_replaced(tool, argument):
    result = tool.call(argument)
    assert result.kind is Kind.CRASHED and result.infra
    assert works(tool)


def test_open_files_are_limited(tool):
    number, why = tool.call({"what": "open"}).text.split(" ", 1)
    assert int(number) < LIMITS.files and why == "Too many open files"
    assert works(tool)


def test_no_file_is_written(tool, tmp_path):
    tmp_path.chmod(0o777)
    result = tool.call({"what": "write", "path": str(tmp_path / "x")})
    assert result.kind is Kind.CRASHED and result.infra
    assert not list(tmp_path.glob("x")) or (tmp_path / "x").stat().st_size == 0
    assert works(tool)


def test_a_fork_bomb_does_not_go_off(tool):
    result = tool.call({"what": "bomb"})
    if "Operation not permitted" not in result.text:
        assert result.text == "0 Resource temporarily unavailable"
    assert works(tool)


def test_limits_are_set(tool):
    kinds = [resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE]
    assert tool.call({"what": "limits", "kinds": kinds}).text == f"{128 << 20} 0 0 0"


@pytest.mark.parametrize(
    "argument",
    [
        {"what": "die", "signal": signal.SIGSEGV},
        {"what": "die", "signal": signal.SIGKILL},
        {"what": "exit"},
        {"what": "an unknown thing"},
    ],
)
def test_a_crash_is_the_machines_fault_and_the_next_call_works(tool, argument):
    result = tool.call(argument)
    assert result.kind is Kind.CRASHED and result.infra and result.text
    assert works(tool)


def test_a_kill_in_the_middle_of_a_call(tool):
    assert works(tool)
    pid = tool.pid
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    assert tool.call({"what": "sleep", "seconds": 60}) == Result(
        Kind.CRASHED, "the worker died with code -9", infra=True
    )
    assert works(tool) and tool.pid != pid


def test_a_kill_between_calls_is_not_noticed(tool):
    for _ in range(3):
        assert works(tool)
        os.kill(tool.pid, signal.SIGKILL)
        assert gone(tool.pid)


def test_an_interrupted_call_leaves_no_answer_behind(tool):
    assert works(tool)

    def alarm(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            tool.call({"what": "sleep", "seconds": 1})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert works(tool)


def test_threads_take_turns(tool):
    wrong = []

    def ask(name):
        for number in range(50):
            text = f"{name} {number}"
            if tool.call({"what": "echo", "text": text}).text != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


@pytest.mark.parametrize("code", ["def call(:", "1 / 0", "x = 1"])
def test_a_tool_that_does_not_start_says_why(tmp_path, code):
    path = tmp_path / "broken.py"
    path.write_text(code)
    made = ToolProcess(Tool(str(path)))
    for _ in range(2):
        result = made.call({})
        assert result.kind is Kind.CRASHED and result.infra
        assert f"{path} does not start" in result.text
        assert made.pid is None


def test_a_process_has_one_worker_per_tool_and_limits():
    one, two = Tool(NAUGHTY), Tool(NAUGHTY, Limits(files=8))
    assert process.shared(one) is process.shared(Tool(NAUGHTY)) is not process.shared(two)
    assert works(process.shared(one)) and works(process.shared(two))
    pids = [process.shared(one).pid, process.shared(two).pid]
    process.close()
    assert not any(map(alive, pids))
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_forked_process_makes_a_worker_of_its_own():
    shared = process.shared(Tool(NAUGHTY))
    assert works(shared)
    pid = shared.pid
    child = os.fork()
    if child == 0:
        own = process.shared(Tool(NAUGHTY))
        good = own is not shared and works(own) and own.pid != pid
        process.close()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert works(shared) and shared.pid == pid  # untouched by the child's end
    process.close()


CHILD = """
    import sys, time
    from marl_llm.games.tools.process import Limits, Tool, shared
    made = shared(Tool({path!r}, Limits(cpu=600, wall=600)))
    made.call({{"what": "echo", "text": ""}})
    print(made.pid, flush=True)
    {then}
"""


@pytest.mark.parametrize(
    "then",
    [
        "time.sleep(600)",
        "made.call({'what': 'loop'})",
        "made.call({'what': 'sleep', 'seconds': 600})",
    ],
)
def test_a_worker_does_not_outlive_its_parent(then):
    """Idle or in the middle of a call, and its parent killed without a word."""
    code = textwrap.dedent(CHILD).format(path=NAUGHTY, then=then)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert alive(pid)
        parent.kill()
    assert gone(pid)


def test_a_worker_ends_with_its_parents_program():
    code = textwrap.dedent(CHILD).format(path=NAUGHTY, then="")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0 and done.stderr == ""
    assert not alive(int(done.stdout))


def test_limits_are_checked():
    with pytest.raises(ConfigError, match=r"limits\.cpu must be above 0, got 0"):
        Limits(cpu=0)
