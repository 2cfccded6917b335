"""`marl-llm`: the command line. What a user can get wrong ends in one line and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from marl_llm.errors import ConfigError, MarlError, nearest

USAGE = """\
marl-llm COMMAND ...

  train experiment=NAME [key=value ...]   train a team; resume=RUNDIR goes on with a stopped run,
                                          dry_run=true prints and checks the plan only
  eval run=RUNDIR | model=PATH [...]      NashConv and matches of a run's or a model's policy
  play [game=NAME] [run=RUNDIR] [...]     sit down against a model or a scripted player
  report run=RUNDIR                       write the run's report.html again
  games [--json]                          list the games
  games check NAME ... | MODULE:CLASS     run the conformance suite on games, your own included
  bench rollout [--json FILE]             measure rollout, engine, learner and overhead as ratios
  experiments                             list the experiments

Every experiment takes seed=N, updates=N, run.dir=PATH and runtime=local|ray.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a user's error, 130 for an interrupt."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    command, rest = words[0], words[1:]
    try:
        if command not in COMMANDS:
            raise ConfigError(f"unknown command {command!r}; {nearest(command, COMMANDS)}")
        return COMMANDS[command](rest)
    except MarlError as error:
        print(f"marl-llm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("marl-llm: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _options(words: Sequence[str], known: Sequence[str], command: str) -> dict[str, str]:
    """`key=value` words of a command that takes only these keys."""
    options = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{command}: expected key=value, got {word!r}")
        if key not in known:
            raise ConfigError(f"{command}: unknown key {key!r}; {nearest(key, known)}")
        options[key] = value
    return options


def _train(words: Sequence[str]) -> int:
    from marl_llm.run import resume, start

    if any(word.startswith("resume=") for word in words):
        options = _options(words, ("resume", "updates"), "train resume")
        return resume(options["resume"], options.get("updates"))
    return start(words)


def _experiments(words: Sequence[str]) -> int:
    from marl_llm.config import ROOT, choices

    _options(words, (), "experiments")
    for name in choices("experiment"):
        first = (ROOT / "experiment" / f"{name}.yaml").read_text().splitlines()
        about = next((line[2:] for line in first if line.startswith("# ") and "@" not in line), "")
        print(f"{name:22} {about}")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": _train,
    "experiments": _experiments,
}

if __name__ == "__main__":
    sys.exit(main())
