"""Who may import whom: the architecture as a test."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "marl_llm"

FREE = {"types", "errors", "seeds", "targets", "weights"}  # the nouns, open to all
COMPOSERS = {"settings", "runtime", "coldstart", "team", "trainer", "journal", "measure", "local",
             "train", "run", "footprint", "plan", "evaluate"}  # fmt: skip
COMMANDS = {"cli", "commands", "bench"}  # what a person calls: may import all
PACKAGES = {"games", "agents", "serve", "rollout", "store", "credit", "annotate", "learn",
            "league", "evaluate", "report"}  # fmt: skip
MAY_IMPORT = {
    "types": {"errors"},
    "errors": set(),
    "seeds": set(),
    "targets": {"errors"},
    "weights": {"types", "errors"},
    "games": set(),
    "agents": {"serve"},
    "serve": set(),
    "store": set(),
    "credit": set(),
    "rollout": {"games", "agents", "serve"},
    "annotate": {"games", "agents", "serve", "rollout", "credit"},
    "learn": {"credit"},
    "league": {"games", "agents", "serve", "rollout"},
    "report": {"credit"},
    "evaluate": {"games", "agents", "serve", "rollout", "league", "credit"},
    "config": set(),
}
ONLY_IN = {
    "ray": {"cluster"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "vllm": {"serve"},
    "peft": {"learn"},
    "torch": {
        "serve",
        "learn",
        "weights",
        "evaluate",
        "team",
        "trainer",
        "cluster",
        "coldstart",
        "footprint",
        "plan",
        "bench",
    },
    "pettingzoo": {"games"},
}
NAMELESS = {"utils", "common", "helpers", "misc", "core", "base", "manager"}


def files():
    return sorted(ROOT.rglob("*.py"))


def unit_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_table(path):
    unit = unit_of(path)
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "marl_llm" and rest:
            target = rest.split(".")[0]
            allowed = (
                FREE | PACKAGES | COMPOSERS | {"config"}
                if unit in COMPOSERS - {"evaluate"} | COMMANDS | {"cluster", "__init__"}
                else MAY_IMPORT[unit]
                | (FREE if unit not in {"types", "errors", "seeds"} else set())
            )
            if unit in COMMANDS | {"run"}:
                allowed |= {"cluster", "commands", "bench"}
            assert target == unit or target in allowed, f"{path.name} imports {name}"
        if top in ONLY_IN:
            assert unit in ONLY_IN[top], f"{path.name} imports {top}"


def test_no_file_has_a_name_that_says_nothing():
    assert [p for p in files() if p.stem in NAMELESS] == []


def test_root_links_lead_to_the_packages_people_extend():
    root = ROOT.parent
    for name in ("agents", "games", "credit", "configs"):
        link = root / name
        assert link.is_symlink() and not link.readlink().is_absolute(), name
        assert link.resolve() == ROOT / name
