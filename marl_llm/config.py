"""Hydra chooses, dataclasses hold.

`compose` turns a command line's ``key=value`` words into one plain dictionary; `build` makes the frozen
dataclass that a node names under ``_target_``. Beyond this file nobody sees a `DictConfig`.

Short words: ``credit=rloo`` or ``learner.lr=1e-4`` speak of the policy called `main`, the only one of
most experiments, and mean ``credit@policies.main.credit=rloo`` and ``policies.main.learner.lr=1e-4``.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from marl_llm.errors import ConfigError, nearest

ROOT = Path(__file__).parent / "configs"
POLICY_GROUPS = ("model", "engine", "credit", "learner", "loss")  # groups that a policy is made of
LOSS_PATH = "learner.loss"  # where the loss sits inside a policy


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
    overrides = [override for word in words for override in _expand(word)]
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


def _expand(word: str) -> list[str]:
    """Hydra's overrides for one word of ours.

    Values are set by force (``++``), since defaults live in the dataclasses and not in the YAML;
    whether a key exists is then for the dataclass to say, which knows all of them.
    """
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"expected key=value, got {word!r}")
    head, _, rest = key.partition(".")
    group = key.partition("@")[0]
    if group in _groups():
        _known_choice(group, value)
        if group == "experiment" or "@" in key:
            return [word]
    if head not in POLICY_GROUPS:
        return [f"++{key}={value}"]
    place = f"policies.main.{LOSS_PATH if head == 'loss' else head}"
    return [f"++{place}.{rest}={value}"] if rest else [f"{head}@{place}={value}"]


def _groups() -> set[str]:
    return {path.name for path in ROOT.iterdir() if path.is_dir()}


def _known_choice(group: str, value: str) -> None:
    known = choices(group)
    if value not in known:
        raise ConfigError(f"unknown {group} {value!r}; {nearest(value, known)}")


def _explain(error: Exception) -> str:
    """One sentence for an error of Hydra's."""
    text = " ".join(str(error).split())
    missing = re.search(r"Missing mandatory value: (\S+)", text)
    if missing:
        return f"{missing[1]} has no default and must be given"
    place = re.search(r"Could not override '([^']+)'", text)
    if place:
        return f"{place[1]} is not part of this experiment, so nothing can be chosen for it"
    return text


def build(node: Any, *, allowed: tuple[str, ...] = ("marl_llm",)) -> Any:
    """What a node stands for: nodes with ``_target_`` become objects, the rest stays as it is.

    Args:
        node: mappings, lists and scalars, as `compose` returns them.
        allowed: packages whose classes may be named.

    Raises:
        ConfigError: a target outside `allowed` or not found, or a setting the target does not have.
    """
    if isinstance(node, Mapping):
        values = {key: build(value, allowed=allowed) for key, value in node.items()}
        if "_target_" not in values:
            return values
        return _construct(values.pop("_target_"), values, allowed)
    if isinstance(node, list):
        return tuple(build(value, allowed=allowed) for value in node)
    return node


def _construct(target: str, values: dict[str, Any], allowed: tuple[str, ...]) -> Any:
    module, _, name = target.rpartition(".")
    if module.split(".")[0] not in allowed:
        raise ConfigError(f"_target_ {target!r} is outside {', '.join(allowed)}")
    try:
        cls = vars(importlib.import_module(module))[name]
    except (ImportError, KeyError) as error:
        raise ConfigError(f"_target_ {target!r} cannot be found: {error}") from error
    return settings(cls, values, name)


def settings(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """An instance of a dataclass (or class) from plain values, unknown names refused.

    Args:
        cls: what to make.
        values: its settings.
        where: how to call it in an error, e.g. ``rollout``.
    """
    if dataclasses.is_dataclass(cls):
        known = {f.name for f in dataclasses.fields(cls) if f.init}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(
                f"{where} has no setting {unknown[0]!r}; {nearest(unknown[0], known)}"
            )
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


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
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read as a run's configuration: {error}") from error
