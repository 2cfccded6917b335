"""Checks of knowledge: an agent is shown all that it may know, and nothing else."""

from __future__ import annotations

from marl_llm.errors import GameError
from marl_llm.games.check.play import Trial, any_action, plays, positions, replay, transcript
from marl_llm.games.text_game import TextGame
from marl_llm.seeds import generator
from marl_llm.types import Move, Observation


def observing_changes_nothing(trial: Trial) -> str:
    """Looking, twice or at another agent's view, changes neither the view nor the game."""
    game, watched = trial.make(), trial.make()
    for seed in trial.seeds:
        plain, _ = transcript(game, seed)
        watched.reset(seed)
        for turn, step in enumerate(plain):
            for agent in watched.possible_agents:
                if watched.observation(agent) != watched.observation(agent):
                    raise GameError(
                        f"seed {seed}, turn {turn}, {agent}: two looks at the same state differ; "
                        "`view` must neither draw nor count"
                    )
                watched.observe(agent)
            if watched.observation(step.observation.agent) != step.observation:
                raise GameError(
                    f"seed {seed}, turn {turn}: looking at other agents' views changes what "
                    f"{step.observation.agent} sees"
                )
            watched.act(step.observation.agent, Move(step.action))
            watched.take_rewards()
    return "observations are pure"


def nothing_hidden_leaks(trial: Trial) -> str:
    """Equal keys show equal text, different keys different text, and pending moves stay hidden."""
    game = trial.make()
    shown: dict[tuple[str, str], tuple[Observation, int]] = {}
    keys: dict[tuple[str, str, str], str] = {}
    again = 0
    for seed, steps in plays(game, trial):
        for turn, step in enumerate(steps):
            seen, where = step.observation, f"seed {seed}, turn {turn}, {step.observation.agent}"
            before, first = shown.setdefault((seen.agent, seen.key), (seen, seed))
            again += first != seed
            for part, now, then in (
                ("text", seen.text, before.text),
                ("brief", seen.brief, before.brief),
                ("legal", seen.legal, before.legal),
            ):
                if now != then:
                    raise GameError(
                        f"{where}: {part} is {now!r} and was {then!r} with seed {first}, though "
                        f"the key {seen.key!r} says that this agent cannot tell the two states "
                        "apart; show only what the agent may know, or put into the key what it may"
                    )
            key = keys.setdefault((seen.agent, seen.text, seen.brief), seen.key)
            if key != seen.key:
                raise GameError(
                    f"{where}: the same text stands for the keys {key!r} and {seen.key!r}; the "
                    "text must hold all that the agent knows, or the key less"
                )
    hidden = _pending_moves_hidden(game, trial)
    return f"{len(shown)} information states met, {again} times again with another seed{hidden}"


def _pending_moves_hidden(game: TextGame, trial: Trial) -> str:
    simultaneous = False
    for seed, line, agent in positions(game, trial):
        replay(game, seed, line)
        for other in game.acting()[1:]:
            simultaneous = True
            before = game.observation(other)
            for action in game.legal(agent) or _drawn(game, agent):
                replay(game, seed, line)
                game.act(agent, Move(action))
                if game.observation(other) != before:
                    raise GameError(
                        f"seed {seed}, turn {len(line)}: {other} sees that {agent} has chosen "
                        f"{action!r} before its own simultaneous move; show moves once all are made"
                    )
    return ", simultaneous moves hidden until all are made" if simultaneous else ""


def _drawn(game: TextGame, agent: str) -> list[str]:
    """Some of the actions that nobody can list."""
    return [any_action(game, agent, generator(k, "hidden")) for k in range(5)]
