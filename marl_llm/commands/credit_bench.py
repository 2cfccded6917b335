"""Compare credit estimators where every turn's credit is known.

  marl-llm credit bench             all estimators on the usual truths, as a Markdown table
    --json FILE                     all measures with their 95 % intervals
    --picture FILE                  the table as a PNG
    estimators=grpo,rloo            only these, of configs/credit
    truths=and,or,kuhn              only these; truths=all for all there are
    groups=120 size=8               how many groups of how many episodes
    tokens=2 seed=0                 tokens of a turn, and the seed of everything
    judge=0.85 probe=0.3            how often labels are right, error of probes in logits
    hindsight=0.3 critic=0          error of hindsight ratios in logs, of values in reward

Signals come from ideal annotators that err as much as the last two lines say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from marl_llm.commands.words import Words, read
from marl_llm.credit.truth import TRUTHS, Truth
from marl_llm.errors import ConfigError, nearest

FILES = ("json", "picture")
USUAL = (
    "and", "or", "add", "noisy", "unique", "long", "team", "turnover", "delegation", "stopping"
)  # fmt: skip
GAMES = ("kuhn", "leduc")  # under uniform play
NUMBERS = ("judge", "probe", "hindsight", "critic")


def run(words: Sequence[str]) -> int:
    """Compare, and say it."""
    keys = (*FILES, "estimators", "truths", "groups", "size", "tokens", "seed", *NUMBERS)
    options = read(words, "credit bench", keys=keys)
    from marl_llm import config
    from marl_llm.credit.truth.ideal import Noise
    from marl_llm.evaluate.estimators.bench import Settings, bench
    from marl_llm.report.estimators import draw, markdown

    settings = Settings(
        groups=options.number("groups", 120, least=2),
        size=options.number("size", 8, least=2),
        tokens=options.number("tokens", 2, least=1),
        seed=options.number("seed", 0),
        noise=Noise(**{name: _number(options, name) for name in NUMBERS if name in options.values}),
    )
    files = {name: _file(options, name) for name in FILES if name in options.values}
    names = _chosen(options, "estimators", config.choices("credit"), config.choices("credit"))
    truths = _chosen(options, "truths", (*TRUTHS, *GAMES), USUAL)
    estimators = {name: config.build(config.node("credit", name)) for name in names}
    console = Console(stderr=True)
    with console.status("") as status:
        result = bench(
            estimators,
            {name: TRUTHS[name] if name in TRUTHS else _game(name) for name in truths},
            settings,
            lambda truth: status.update(f"{len(estimators)} estimators on {truth}"),
        )
    print(markdown(result), end="")
    for name, write in (("json", _write), ("picture", draw)):
        if name in files:
            write(result, files[name])
    return 0


def _game(name: str) -> Truth:
    """A real game, whose tree is summed over."""
    from marl_llm.evaluate.estimators.games import game_truth
    from marl_llm.evaluate.text_tree import text_tree, uniform, written_policy
    from marl_llm.games import catalog

    tree = text_tree(catalog.build(name))  # type: ignore[arg-type]
    return game_truth(tree, written_policy(tree, uniform))


def _write(result: object, path: Path) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _file(options: Words, name: str) -> Path:
    """Where a result goes; tried before the work begins, so that no result is lost.

    Raises:
        ConfigError: no name, a folder, or a picture that is no PNG.
        OSError: it cannot be written.
    """
    path = Path(options.values[name])
    if path.is_dir() or (name == "picture" and path.suffix != ".png"):
        kind = "a .png" if name == "picture" else "a file"
        raise ConfigError(f"credit bench: {name} must be {kind}, got {options.values[name]!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.exists()
    path.open("a").close()
    if not there:
        path.unlink()
    return path


def _chosen(options: Words, key: str, known: Sequence[str], usual: Sequence[str]) -> list[str]:
    """The names after ``key=``, all if that is "all", the usual ones if it was not given."""
    names = options.listed(key) or tuple(usual)
    if names == ("all",):
        return list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"credit bench: {key} has no {name!r}; {nearest(name, known)}")
    return list(names)


def _number(options: Words, key: str) -> float:
    try:
        return float(options.values[key])
    except ValueError:
        raise ConfigError(
            f"credit bench: {key} must be a number, got {options.values[key]!r}"
        ) from None
