"""`marl-llm`: the command line. What a user can get wrong ends in one line and exit code 2.

Each command is a module of `commands`, whose docstring is its help. It is imported when it is
called, so that help and misspelt words are answered without waiting for torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from marl_llm.errors import ConfigError, MarlError, nearest

USAGE = """\
marl-llm COMMAND ...

  train experiment=NAME [key=value ...]   train a team; resume=RUNDIR goes on with a stopped run,
                                          dry_run=true prints and checks the plan only
  eval run=RUNDIR | model=PATH [...]      NashConv and matches of a run's or a model's policy
  play game=NAME [run=RUNDIR] [...]       sit down against a model or a scripted player
  report run=RUNDIR                       write the run's report.html again
  games [--json]                          list the games
  games check [NAME ...]                  run the conformance suite on games, your own included
  credit list | choose                    the credit estimators, and which of them suit
  credit bench [--json FILE]              compare them where the truth is known
  credit compare RUNDIR                   ... on the stored games of a run,
  credit explain RUNDIR EPISODE           ... and turn by turn on one of them
  bench rollout [--json FILE]             measure rollout, engine, learner and overhead as ratios
  bench credit [--json FILE]              measure time and memory of the credit estimators
  bench calls [--json FILE]               compare credit of sub-agents with its exact value
  experiments                             list the experiments

Every experiment takes seed=N, updates=N, run.dir=PATH and runtime=local|ray.
marl-llm COMMAND --help says more.
"""

COMMANDS = {  # command -> module of `commands`
    "train": "train",
    "eval": "evaluate",
    "play": "play",
    "report": "report",
    "games": "games",
    "credit": "credit",
    "bench": "bench",
    "experiments": "experiments",
}
HELP = ("-h", "--help", "help")
NO_MEMORY = (
    "out of memory; use a smaller model, learner.micro_tokens or engine.max_batch, train LoRA "
    "adapters (learner=lora), or take a larger machine"
)
# Read by transformers, tokenizers and the hub when they are imported.
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 for a failed check, 2 for an error, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in HELP:
        print(USAGE, end="")
        return 0
    _quieten()
    try:
        return _call(words[0], words[1:])
    except MarlError as error:
        return _refuse(" ".join(str(error).split()))
    except BrokenPipeError:
        # Who read our output has gone; what is left of it must not be flushed at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A library may name no file, or name it in the text of its own, or as bytes.
        file = error.filename
        where = f": {os.fsdecode(file) if isinstance(file, bytes) else file}" if file else ""
        return _refuse(f"{error.strerror or ' '.join(str(error).split())}{where}")
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        return _refuse(NO_MEMORY)
    except KeyboardInterrupt:
        _refuse("interrupted")
        return 130


def _call(command: str, rest: Sequence[str]) -> int:
    if command not in COMMANDS:
        raise ConfigError(f"unknown command {command!r}; {nearest(command, COMMANDS)}")
    module = importlib.import_module(f"marl_llm.commands.{COMMANDS[command]}")
    if any(word in HELP for word in rest):
        print((_meant(module, rest[0]).__doc__ or USAGE).strip())
        return 0
    return module.run(rest)


def _meant(module: ModuleType, verb: str) -> ModuleType:
    """Whose help is wanted: the verb's where a command has several, else the command's."""
    verbs = vars(module).get("VERBS", {})
    return importlib.import_module(f"marl_llm.commands.{verbs[verb]}") if verb in verbs else module


def _quieten() -> None:
    """Keep the bars and remarks of transformers off the terminal: they would cut up our own."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if "transformers" in sys.modules:  # imported before, it has read them already
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()


def _refuse(message: str) -> int:
    print(f"marl-llm: {message}", file=sys.stderr)
    return 2


def _out_of_memory(error: Exception) -> bool:
    """Whether Python, or torch on a device or a CPU, ran out of memory; without importing torch."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "DefaultCPUAllocator" in str(error)
    )


if __name__ == "__main__":
    sys.exit(main())
