"""NashConv of a language model's own policy: exact, through the same text as in play.

    tree = text_tree(KuhnPoker())
    measured = measure(tree, role, chat, engine, seed=0)
    measured.result.nash_conv

Every information state of the game is put through the game's text and the role's prompt, every
legal reply is scored by the model, and OpenSpiel's best responses do the rest. The tree, the
replies and the best responses are exact. What is not is the thought: a reply's probability depends
on the thought before it, and nobody can sum over all thoughts. So one of

- ``sampled``: thoughts are sampled as in play, and the probabilities averaged over them; or
- ``fixed``: the thought is the observation in brief, which is the form that a cold start teaches;
- ``none``: there is no thought, for a model that was taught to answer at once;

and a result says which. Few sampled thoughts make the averages noisy, and a best response exploits
the noise too, so NashConv then errs upward. The policy is that of play without forfeits:
probabilities are normalised over the legal replies, and `legal_mass` says how much the model gives
to them.

Returns are those of the rules (chips), whatever the outcome table pays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pyspiel
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import exploitability

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.role import Role, Seat
from marl_llm.errors import ConfigError
from marl_llm.evaluate.text_tree import (
    Numbered,
    PolicyTable,
    TextTree,
    nodes,
    numbered,
    table,
    uniform,
)
from marl_llm.seeds import derive
from marl_llm.serve import Engine, generate
from marl_llm.types import Finish, Request

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What stands before the action when a reply is scored."""

    mode: Literal["sampled", "fixed", "none"] = "sampled"
    count: int = 8  # sampled thoughts per prompt

    def __post_init__(self) -> None:
        if self.mode not in ("sampled", "fixed", "none"):
            raise ConfigError(f"thoughts.mode is 'sampled', 'fixed' or 'none', got {self.mode!r}")
        if self.count < 1:
            raise ConfigError(f"thoughts.count must be at least 1, got {self.count}")

    def __str__(self) -> str:
        if self.mode == "sampled":
            return f"sampled, {self.count} per state"
        return "fixed: the observation in brief" if self.mode == "fixed" else "none"


@dataclass(frozen=True, slots=True)
class NashConv:
    """How far a policy is from an equilibrium, in the rules' own units."""

    nash_conv: float  # what all agents together gain by best responses
    values: Mapping[str, float]  # return of each agent when all play the policy
    best_responses: Mapping[str, float]  # ... when it alone plays its best response
    legal_mass: float  # mean over the states met in play
    states: int
    thoughts: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's policy and how far it is from an equilibrium."""

    policy: PolicyTable
    result: NashConv
    reference: PolicyTable | None = None  # an equilibrium to show beside it

    def as_json(self) -> dict[str, Any]:
        """The result, and the policy state by state as the report draws it."""
        reference = {} if self.reference is None else self.reference.states
        table = {
            key: {
                "observation": state.observation.text,
                "model": dict(state.actions),
                "nash": dict(reference[key].actions) if key in reference else None,
                "reach": state.reach,
                "legal_mass": state.legal_mass,
            }
            for key, state in self.policy.states.items()
        }
        return {**asdict(self.result), "players": len(self.result.values), "table": table}


def measure(
    tree: TextTree,
    role: Role,
    chat: Chat,
    engine: Engine,
    *,
    seed: int,
    thoughts: Thoughts | None = None,
    reference: PolicyTable | None = None,
) -> Measured:
    """A model's policy in a game and its NashConv; see `model_policy` and `nash_conv`.

    Args:
        tree: of the game.
        role: prompt, parser and sampling; its memory must be ``observation``.
        chat: of the model.
        engine: serves the model and is otherwise idle.
        seed: of the thoughts.
        thoughts: sampled, 8 per state, if None.
        reference: an equilibrium to show beside it, from `text_tree.equilibrium_policy`.
    """
    policy = model_policy(tree, role, chat, engine, seed=seed, thoughts=thoughts)
    return Measured(policy, nash_conv(policy, tree), reference)


def model_policy(
    tree: TextTree,
    role: Role,
    chat: Chat,
    engine: Engine,
    *,
    seed: int,
    thoughts: Thoughts | None = None,
) -> PolicyTable:
    """What a model does in every information state of a game.

    With a ∈ A(s) the legal actions, z_1..z_k the thoughts of state s and p the model at the role's
    temperature,

        mass(a) = 1/k Σ_j p(reply naming a | s, z_j)      π(a|s) = mass(a) / Σ_a' mass(a')

    A thought that never opens an answer, or breaks the form, counts among the k with probability 0
    for every action, as in play. Replies that spell the same action otherwise (outer spaces, other
    tokens for the same text) are left out, so `legal_mass` is a lower bound, by little. Where it is
    0 the policy is taken as uniform.

    Args:
        tree: of the game.
        role: prompt, parser and sampling; its memory must be ``observation``.
        chat: of the model.
        engine: serves the model and is otherwise idle.
        seed: of the thoughts.
        thoughts: sampled, 8 per state, if None.

    Raises:
        ConfigError: the role's memory, parser or sampling leaves a reply's probability undefined.
    """
    thoughts = thoughts or Thoughts()
    parser = scorable(role)
    prompts = {
        key: Seat(role, chat, tree.rules).prompt(state.observation)
        for key, state in tree.states.items()
    }
    if thoughts.mode == "sampled":
        examples = {prompts[key]: next(iter(s.actions)) for key, s in tree.states.items()}
        sampled = _sampled(examples, role, parser, chat, engine, thoughts.count, seed)
        openings = {key: sampled[prompt] for key, prompt in prompts.items()}
    else:
        brief = thoughts.mode == "fixed" and parser.think != "none"
        openings = {
            key: _written(state.observation.brief if brief else None, parser, chat)
            for key, state in tree.states.items()
        }
    mass = _masses(tree, role, parser, chat, engine, prompts, openings)
    totals = {key: sum(chances.values()) for key, chances in mass.items()}
    chances = {
        key: {action: p / totals[key] for action, p in mass[key].items()}
        if totals[key] > 0
        else uniform(state)
        for key, state in tree.states.items()
    }
    return table(tree, chances, totals, str(thoughts), engine.version)


def nash_conv(policy: PolicyTable, tree: TextTree) -> NashConv:
    """The sum over agents of what each could gain by a best response to the others.

        NashConv(π) = Σ_i [ max_σ u_i(σ, π_-i) - u_i(π) ]

    0 exactly at a Nash equilibrium. Uniform play: 11/12 in Kuhn poker, 4.747222 in Leduc.

    Args:
        policy: of every information state in the tree.
        tree: of the game.

    Source: Lanctot et al. 2017 (arXiv 1711.00832); best responses by OpenSpiel.
    """
    chances = numbered(tree, {key: state.actions for key, state in policy.states.items()})
    answer = exploitability.nash_conv(
        tree.game, _Written(tree.game, chances), return_only_nash_conv=False
    )
    gains = np.asarray(answer.player_improvements, dtype=np.float64)
    values = np.zeros(len(tree.agents))
    for state, probability in nodes(tree.game, chances):
        if state.is_terminal():
            values += probability * np.array(state.returns())
    reach = np.array([state.reach for state in policy.states.values()])
    mass = np.array([state.legal_mass for state in policy.states.values()])
    return NashConv(
        nash_conv=float(gains.sum()),
        values=dict(zip(tree.agents, values.tolist(), strict=True)),
        best_responses=dict(zip(tree.agents, (values + gains).tolist(), strict=True)),
        legal_mass=float(reach @ mass / reach.sum()),
        states=len(policy.states),
        thoughts=policy.thoughts,
        version=policy.version,
    )


# Scoring.

Opening = tuple[Ids, str]  # a reply up to its action: whole tokens, and text that they cut off


def scorable(role: Role) -> Tags:
    """The role's parser, if the probability of an action is defined for this role at all.

    Raises:
        ConfigError: it is not, and why.
    """
    where = f"NashConv of role {role.name!r}"
    if role.memory != "observation":
        raise ConfigError(
            f"{where} needs memory: observation, got {role.memory!r}; with a memory the policy "
            "depends on what was said before, not on the information state alone"
        )
    if not isinstance(role.parser, Tags):
        raise ConfigError(
            f"{where} needs the parser Tags, got {type(role.parser).__name__}; other replies may "
            "go on after an action and change it, so that it has no probability of its own"
        )
    sampling = role.sampling
    if sampling.temperature == 0 or sampling.top_p < 1 or sampling.top_k > 0:
        raise ConfigError(
            f"{where} needs sampling with temperature > 0, top_p 1 and top_k 0, got {sampling}; "
            "the probabilities of cut distributions are not those that the model scores"
        )
    return role.parser


def _written(thought: str | None, parser: Tags, chat: Chat) -> dict[Opening, float]:
    return {(chat.encode(parser.before_action(thought)), ""): 1.0}


def _sampled(
    examples: Mapping[Ids, str],
    role: Role,
    parser: Tags,
    chat: Chat,
    engine: Engine,
    count: int,
    seed: int,
) -> dict[Ids, dict[Opening, float]]:
    """Openings of sampled replies with their shares; shares of broken ones are missing.

    Args:
        examples: prompt -> one legal action there.
        role: how it is asked.
        parser: the role's.
        chat: of the model.
        engine: serves it.
        count: replies per prompt.
        seed: of the draws.
    """
    tag = f"<{parser.answer_tag}>"
    # A token may hold the tag's last character and the action's first ones (">b" of ">bet"), so
    # what is sampled ends one character earlier, and that character is scored with the action.
    sampling = replace(role.request_sampling, stop=(tag[:-1], *role.request_sampling.stop))
    asked = list(product(examples, range(count)))
    requests = [
        Request(number, prompt, sampling, derive(seed, "thought", number))
        for number, (prompt, _) in enumerate(asked)
    ]
    shares: dict[Ids, Counter[Opening]] = {prompt: Counter() for prompt in examples}
    for (prompt, _), completion in zip(asked, generate(engine, requests), strict=True):
        opening = _opening(completion.ids, tag, chat)
        if opening is not None:
            reply = chat.decode(opening[0]) + opening[1] + parser.action_text(examples[prompt])
            if parser.parse(reply, Finish.STOP).action == examples[prompt]:
                shares[prompt][opening] += 1
    return {
        prompt: {opening: n / count for opening, n in counted.items()}
        for prompt, counted in shares.items()
    }


def _opening(ids: Ids, tag: str, chat: Chat) -> Opening | None:
    """Sampled ids up to the tag that opens the answer, and what is missing of it; None = no tag."""
    text = chat.decode(ids)
    start = text.find(tag[:-1])
    opened = text[:start] + tag
    if start < 0 or not opened.startswith(text[: len(opened)]):
        return None
    for length in range(len(ids), -1, -1):  # a last token that says more than the tag is left out
        whole = chat.decode(ids[:length])
        if opened.startswith(whole):
            return ids[:length], opened[len(whole) :]
    return None


def _masses(
    tree: TextTree,
    role: Role,
    parser: Tags,
    chat: Chat,
    engine: Engine,
    prompts: Mapping[str, Ids],
    openings: Mapping[str, Mapping[Opening, float]],
) -> dict[str, dict[str, float]]:
    """Probability of a reply that names each legal action; one that finds no room has none."""
    asked: list[tuple[str, str, float]] = []
    sequences: list[tuple[Ids, Ids]] = []
    for key, state in tree.states.items():
        limit = min(role.sampling.max_tokens, engine.context - len(prompts[key]))
        for ((before, rest), share), action in product(openings[key].items(), state.actions):
            reply = chat.encode(rest + parser.action_text(action))
            if len(before) + len(reply) <= limit:
                asked.append((key, action, share))
                sequences.append((prompts[key] + before, reply))
    mass = {key: dict.fromkeys(state.actions, 0.0) for key, state in tree.states.items()}
    scores = engine.score(sequences, role.sampling.temperature)
    for (key, action, share), logprobs in zip(asked, scores, strict=True):
        mass[key][action] += share * math.exp(sum(logprobs))
    return mass


class _Written(spiel_policy.Policy):
    """A policy table as OpenSpiel's best responses want it."""

    def __init__(self, game: pyspiel.Game, chances: Numbered) -> None:
        super().__init__(game, list(range(game.num_players())))
        self._chances = chances

    def action_probabilities(
        self, state: pyspiel.State, player_id: int | None = None
    ) -> Mapping[int, float]:
        player = state.current_player() if player_id is None else player_id
        return self._chances[state.information_state_string(player)]
