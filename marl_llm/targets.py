"""Code that a configuration names: its module, imported, or an error that says what is wrong.

Only packages that somebody named on purpose are run. They are installed or lie in the working
folder.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from marl_llm.errors import ConfigError

OURS = "marl_llm"


def module_of(target: str, packages: Collection[str]) -> ModuleType:
    """The module of a target, imported.

    Args:
        target: dotted, such as ``my_pkg.games.Nim``.
        packages: whose code may be run.

    Raises:
        ConfigError: it is of another package, is not there, or fails on import.
    """
    name, _, _ = target.rpartition(".")
    package = name.split(".")[0]
    if not name:
        raise ConfigError(f"_target_ {target!r} is no dotted name, such as my_pkg.my_game.MyGame")
    if package not in packages:
        raise ConfigError(
            f"_target_ {target!r} is outside {' and '.join(packages)}; only code of packages that "
            f"you name is run, so name {package!r} too if you trust it (in a run: "
            f"packages=[{package}])"
        )
    try:
        with working_folder_importable():
            return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {name!r}: {error}; check the name, and that it is installed or lies in "
            "the working folder"
        ) from error
    except Exception as error:  # whatever a user's module may do while it is imported
        raise ConfigError(f"{name} fails on import: {type(error).__name__}: {error}") from error


@contextmanager
def working_folder_importable() -> Iterator[None]:
    """The working folder can be imported from, as with ``python -m``."""
    folder = str(Path.cwd())
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
