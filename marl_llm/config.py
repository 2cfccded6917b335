"""Hydra chooses, dataclasses hold.

`compose` turns a command line's ``key=value`` words into one plain dictionary; `build` makes the
frozen dataclass that a node names under ``_target_``. Beyond this file nobody sees a `DictConfig`.

Short words: ``credit=rloo`` or ``learner.lr=1e-4`` speak of the policy called `main`, the only one
of most experiments, and mean ``credit@policies.main.credit=rloo`` and
``policies.main.learner.lr=1e-4``; ``runtime=ray`` means ``runtime.name=ray``. As in Hydra, ``+`` in
front of a group's place adds it, and ``~`` in front of anything takes it out.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from marl_llm.errors import ConfigError, nearest
from marl_llm.targets import OURS, module_of

ROOT = Path(__file__).parent / "configs"
FIRST = "kuhn_selfplay"  # the experiment of a command line that names none
POLICY_GROUPS = ("model", "engine", "credit", "learner", "loss")  # groups that a policy is made of
LOSS_PATH = "learner.loss"  # where the loss sits inside a policy
PLACES = {  # where a member of the other groups usually goes
    "game": "games.{0}",
    "role": "seats.self.role",
    "player": "evaluation.panel.{0}",
    "annotator": "policies.main.annotators.{0}",
}
PLAIN = (str, int, float, bool, NoneType, Mapping, tuple, list)  # what YAML gives without _target_
WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    Any: "anything",
}


def choices(group: str) -> list[str]:
    """Names of the YAML files in a config group, e.g. ``experiment`` or ``credit``."""
    return sorted(path.stem for path in (ROOT / group).glob("*.yaml"))


def compose(words: Sequence[str]) -> dict[str, Any]:
    """The whole configuration for a command line.

    Args:
        words: ``key=value`` overrides, ``experiment=NAME`` among them.

    Raises:
        ConfigError: a word is not ``key=value``, or names an unknown group member or key.
    """
    policies = _policies(words)
    overrides = [override for word in words for override in _expand(word, policies)]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(ROOT), version_base="1.3"):
            config = hydra_compose("train", overrides=overrides, return_hydra_config=True)
        chosen = config.hydra.runtime.choices["experiment"]
        with open_dict(config):
            del config["hydra"]
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error)) from error
    finally:
        GlobalHydra.instance().clear()
    return {"experiment": chosen, **container}  # type: ignore[dict-item]


def _policies(words: Sequence[str]) -> list[str]:
    """Names of the policies of the experiment that these words choose, as its YAML lists them."""
    chosen = [word.partition("=")[2] for word in words if word.startswith("experiment=")]
    path = ROOT / "experiment" / f"{chosen[-1] if chosen else FIRST}.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return list(dict.fromkeys(re.findall(r"@policies\.(\w+)\.", text))) or ["main"]


def _expand(word: str, policies: Sequence[str]) -> list[str]:
    """Hydra's overrides for one word of ours; what a policy is made of goes to all policies.

    Values are set by force (``++``), since defaults live in the dataclasses and not in the YAML;
    whether a key exists is then for the dataclass to say, which knows all of them.
    """
    if word.startswith("~"):  # take something out
        return [word]
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"expected key=value, got {word!r}")
    head, _, rest = key.partition(".")
    group = key.removeprefix("+").partition("@")[0]
    if group in _groups():
        _known_choice(group, value)
        if group == "experiment" or "@" in key:
            return [word]
        if group not in POLICY_GROUPS:
            place = f"{group}@{PLACES.get(group, 'PLACE').format(value)}={value}"
            raise ConfigError(
                f"{word} does not say where; write {place} to replace what is there, or +{place} "
                "to add it"
            )
    if "=" in value:  # a path may hold one, Hydra's grammar not
        value = repr(value)
    if word.startswith("runtime="):
        return [f"++runtime.name={value}"]
    if head not in POLICY_GROUPS:
        return [f"++{key.removeprefix('+')}={value}"]
    part = LOSS_PATH if head == "loss" else head
    places = [f"policies.{policy}.{part}" for policy in policies]
    return [f"++{at}.{rest}={value}" if rest else f"{head}@{at}={value}" for at in places]


def _groups() -> set[str]:
    return {path.name for path in ROOT.iterdir() if any(path.glob("*.yaml"))}


def _known_choice(group: str, value: str) -> None:
    known = choices(group)
    if value not in known:
        raise ConfigError(f"unknown {group} {value!r}; {nearest(value, known)}")


def _explain(error: Exception) -> str:
    """One sentence for an error of Hydra's."""
    text = " ".join(str(error).split())
    missing = re.search(r"Missing mandatory value: (\S+)", text)
    if missing:
        full = re.search(r"full_key: (\S+)", text)
        return f"{full[1] if full else missing[1]} has no default and must be given"
    place = re.search(r"Could not override '([^']+)'", text)
    if place:
        return (
            f"{place[1]} is not part of this experiment, so nothing can replace it; write "
            f"+{place[1]}=... to add it"
        )
    return text


def node(group: str, name: str) -> dict[str, Any]:
    """The YAML of a group's member as it stands, e.g. of player `minimax`.

    Raises:
        ConfigError: there is no such member.
    """
    _known_choice(group, name)
    return read(ROOT / group / f"{name}.yaml")


def build(node: Any, *, allowed: tuple[str, ...] = (OURS,), where: str = "") -> Any:
    """What a node stands for: nodes with ``_target_`` become objects, the rest stays as it is.

    Args:
        node: mappings, lists and scalars, as `compose` returns them.
        allowed: packages whose classes may be named.
        where: how to call it in an error, e.g. ``policies.main``; "" = by its class.

    Raises:
        ConfigError: a target outside `allowed` or not found, or a setting the target does not have.
    """
    if isinstance(node, Mapping):
        values = {
            key: build(value, allowed=allowed, where=f"{where}.{key}" if where else str(key))
            for key, value in node.items()
        }
        if "_target_" not in values:
            return values
        return _construct(values.pop("_target_"), values, allowed, where)
    if isinstance(node, list):
        return tuple(build(value, allowed=allowed, where=where) for value in node)
    return node


def _construct(target: Any, values: dict[str, Any], allowed: tuple[str, ...], where: str) -> Any:
    if not isinstance(target, str):
        raise ConfigError(f"{where or 'a node'}._target_ must be text, got {target!r}")
    module, _, name = target.rpartition(".")
    members = vars(module_of(target, allowed))
    if not callable(members.get(name)):
        classes = [key for key, value in members.items() if inspect.isclass(value)]
        raise ConfigError(f"{module} has no {name!r} to call; {nearest(name, classes)}")
    return settings(members[name], values, where or name)


def settings(cls: type, values: Any, where: str) -> Any:
    """An instance of a class from plain values: unknown names and wrong types are refused.

    Args:
        cls: what to make; a dataclass, or a class whose `__init__` says its types.
        values: its settings by name.
        where: how to call it in an error, e.g. ``rollout``; "" = the run itself.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{where} has settings of its own, such as {where}.KEY=VALUE; got {values!r}"
        )
    who, place = where or "the run", f"{where}." if where else ""
    parameters = inspect.signature(cls).parameters
    unknown = sorted(set(values) - set(parameters))
    if unknown:
        raise ConfigError(f"{who} has no setting {unknown[0]!r}; {nearest(unknown[0], parameters)}")
    missing = [
        name for name, p in parameters.items() if p.default is p.empty and name not in values
    ]
    if missing:
        raise ConfigError(f"{who} needs the setting {missing[0]!r}, which has no default")
    said_in = cls if dataclasses.is_dataclass(cls) else vars(cls).get("__init__", cls)
    hints = get_type_hints(said_in)
    for name, value in values.items():
        if name in hints and not fits(value, hints[name]):
            raise ConfigError(f"{place}{name} must be {in_words(hints[name])}, got {value!r}")
    return cls(**values)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as settings need it.

    Whole numbers are numbers; booleans, NaN and infinity are not. Any object that was built fits
    any protocol.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if parts[-1] is ...:
            return all(fits(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(fits, value, parts))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(v, parts[1]) for v in value.values())
    if hint is None or hint is type(None):
        return value is None
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:  # NaN compares as nothing, so that every check of a range would let it pass
        return fits(value, int) or (isinstance(value, float) and math.isfinite(value))
    if hint in (bool, str):
        return isinstance(value, hint)
    if hint is Any or not isinstance(hint, type):
        return True
    if dataclasses.is_dataclass(hint):
        return isinstance(value, hint)
    return not isinstance(value, PLAIN)


def in_words(hint: Any) -> str:
    """A type as a user would call it, e.g. "a whole number" or "one of sampled, fixed"."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(in_words(part) for part in parts)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is tuple:
        if parts[-1] is ...:
            return f"a list, each item {in_words(parts[0])}"
        return f"a list of {len(parts)}: {', '.join(map(in_words, parts))}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping, each value {in_words(parts[1])}"
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    return WORDS.get(hint, f"a {name} (a group's member, or a mapping with _target_)")


def write(config: Mapping[str, Any], path: Path) -> None:
    """Keep the resolved configuration of a run."""
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def read(path: Path) -> dict[str, Any]:
    """The configuration that `write` kept.

    Raises:
        ConfigError: the file is missing or not YAML.
    """
    try:
        return dict(yaml.safe_load(path.read_text()))
    except (OSError, ValueError, yaml.YAMLError, TypeError) as error:  # ValueError: not UTF-8
        raise ConfigError(f"{path} cannot be read as a run's configuration: {error}") from error
