"""The plan of a run: what `dry_run=true` prints and checks, without loading any weights.

Each line is one finding: ok, WARN (it will run, but look here) or FAIL (it will not, or learns
nothing) with the way out. Texts are measured by playing a few games at random, models by their
config, players by having them move once.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_llm.agents import Player
from marl_llm.agents.role import Role
from marl_llm.agents.scripted import Uniform
from marl_llm.annotate.asking import Asking
from marl_llm.coldstart import purposeful
from marl_llm.errors import MarlError
from marl_llm.footprint import ModelSize, footprint, in_words, size_of
from marl_llm.games import Game
from marl_llm.games.catalog import entry
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import play
from marl_llm.seeds import derive, generator
from marl_llm.serve.sources import TinyModel
from marl_llm.serve.tiny import build_tokenizer
from marl_llm.settings import Policy, RunSettings, names_of
from marl_llm.team import check_replays
from marl_llm.types import Episode

EPISODES = 40  # random games per game whose texts are measured
BYTES_PER_TOKEN = 4  # of English in the usual vocabularies
TEMPLATE_TOKENS = 12  # of a chat template around system and user texts
STYLES = {"ok": "green", "WARN": "yellow", "FAIL": "bold red"}


@dataclass(frozen=True, slots=True)
class Line:
    """One finding."""

    what: str
    text: str
    status: Literal["ok", "WARN", "FAIL"] = "ok"


def print_plan(run: RunSettings) -> int:
    """Print the plan; the exit code is 1 if a line says FAIL."""
    table = Table(title=f"{run.experiment}, seed {run.seed}", title_justify="left", box=None)
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")  # commands can be copied whole
    table.show_header = False
    found = list(lines(run))
    for line in found:
        table.add_row(Text(line.status, STYLES[line.status]), line.what, Text(line.text))
    Console().print(table)
    failed = sum(line.status == "FAIL" for line in found)
    if failed:
        print(f"{failed} of {len(found)} lines FAIL: mend them before you train")
    return 1 if failed else 0


def lines(run: RunSettings) -> Iterator[Line]:
    """All findings, in the order of a run."""
    yield _folder(run)
    samples = {name: _random_games(run, name) for name in (*run.games, *run.held_out)}
    yield from _games(run, samples)
    yield from _rollout(run, samples)
    yield from _replays(run)
    sizes = {name: size_of(policy.model) for name, policy in run.policies.items()}
    longest: dict[str, int] = {}
    for name, policy in run.policies.items():
        yield _model(name, policy, sizes[name])
        tokens, line = _context(run, name, sizes[name], samples)
        longest[name] = tokens
        yield line
        yield from _signals(name, policy)
        yield from _credit(run, name, policy)
        yield from _learning(run, name, policy)
        yield from _coldstart(run, name, policy)
    yield from _devices(run, sizes, longest)
    yield from _evaluation(run)


def _folder(run: RunSettings) -> Line:
    folder = run.run.dir
    if folder is not None and (Path(folder) / "config.yaml").exists():
        way = "choose another run.dir, or resume it"
        return Line("run folder", f"{folder} holds a run already; {way}", "FAIL")
    return Line("run folder", folder or f"runs/{run.experiment}-seed{run.seed}, or the next free")


def _random_games(run: RunSettings, name: str) -> list[Episode]:
    """A few games of random play."""
    make = run.makers()[name]
    roles = {name: make().roles}
    seed = derive(run.seed, "plan")
    plans = balanced(seed, 0, EPISODES, 1, roles, [("random",)])
    return play(plans, {name: make}, {"random": Uniform()}, {}, seed=seed)


def _games(run: RunSettings, samples: Mapping[str, Sequence[Episode]]) -> Iterator[Line]:
    if not run.games:
        yield Line("games", "no game to train on; add +game@games.kuhn=kuhn", "FAIL")
    for name, make in run.makers().items():
        facts = entry(make())
        turns = sum(len(episode.turns) for episode in samples[name]) / EPISODES
        kind = "game" if name in run.games else "held out"
        yield Line(
            f"{kind} {name}",
            f"{facts.players} players, {facts.information} information, {facts.interest} interests,"
            f" {turns:.1f} turns at random and {facts.max_turns} at most, "
            f"measured by {facts.solver if facts.solver != 'none' else 'matches'}",
        )


def _rollout(run: RunSettings, samples: Mapping[str, Sequence[Episode]]) -> Iterator[Line]:
    rollout = run.rollout
    roles = {name: run.makers()[name]().roles for name in run.games}
    try:
        plans = balanced(run.seed, 0, rollout.episodes, rollout.group_size, roles, rollout.lineups)
    except MarlError as error:
        yield Line("rollout", str(error), "FAIL")
        return
    groups = rollout.episodes // rollout.group_size
    turns = sum(len(samples[plan.game][plan.id % EPISODES].turns) for plan in plans)
    limit = max(seat.role.sampling.max_tokens for seat in run.seats.values())
    most = sum(run.makers()[name]().max_turns for name in run.games) / max(len(run.games), 1)
    yield Line(
        "rollout",
        f"{rollout.episodes} episodes per update in {groups} groups of {rollout.group_size}, about "
        f"{turns:,} turns as in random play; at most {most * rollout.episodes * limit:,.0f} tokens "
        f"sampled per update, about {turns * limit:,} if every reply is as long as allowed",
    )
    if groups % max(len(run.games), 1):
        yield Line(
            "balance",
            f"{groups} groups do not spread evenly over {len(run.games)} games; make "
            f"rollout.episodes a multiple of {rollout.group_size * len(run.games)}",
            "WARN",
        )
    seated = {name for lineup in rollout.lineups for name in names_of(lineup)}
    for policy in run.policies:
        if not any(seat.policy == policy for name, seat in run.seats.items() if name in seated):
            yield Line(
                f"policy {policy}",
                "no line-up seats it, so it would never learn; name one of its seats in "
                "rollout.lineups",
                "FAIL",
            )


def _model(name: str, policy: Policy, size: ModelSize | None) -> Line:
    what = f"policy {name}"
    about = policy.model.describe()
    if policy.model.needs_corpus and policy.coldstart is None:
        way = f"add +player@policies.{name}.coldstart.player=random"
        return Line(what, f"{about} needs a cold start, which is missing; {way}", "FAIL")
    if size is None:
        way = (
            "fetch its config.json, or declare model.parameters, model.cache_values, model.context"
        )
        return Line(what, f"{about}: its size is not known here; {way}", "WARN")
    adapters = "" if policy.learner.lora is None else ", of which only LoRA adapters are trained"
    return Line(what, f"{about}: {size.parameters:,} parameters by {size.source}{adapters}")


def _context(
    run: RunSettings, policy: str, size: ModelSize | None, samples: Mapping[str, Sequence[Episode]]
) -> tuple[int, Line]:
    """Tokens that one request can take, and the line on it."""
    settings = run.policies[policy]
    what = f"context of {policy}"
    bounds = [
        bound
        for bound in (settings.engine.context, None if size is None else size.context)
        if bound is not None
    ]
    cast = run.cast(policy)
    roles = list(cast.values())
    texts = {
        game: list(_prompts(cast, run.makers()[game](), episodes))
        for game, episodes in samples.items()
    }
    count = _counter(settings, [text for game in run.games for text, _ in texts[game]])
    reply = max((role.sampling.max_tokens for role in roles), default=0)
    prompts = [
        (tokens := TEMPLATE_TOKENS + count(text), tokens + before * reply)
        for game in texts
        for text, before in texts[game]
    ]
    shortest = max((bare for bare, _ in prompts), default=0)
    longest = max((full for _, full in prompts), default=0) + reply
    how = "counted by its tokenizer" if settings.model.needs_corpus else "at 4 bytes per token"
    if not bounds:
        return longest, Line(what, "not known; set engine.context to the model's", "WARN")
    context = min(bounds)
    said = f"longest prompt {shortest:,} tokens ({how}), replies up to {reply:,}, of {context:,}"
    if shortest + 1 >= context:
        way = "raise the model's or the engine's context, or use shorter prompts or memory"
        return context, Line(what, f"{said}: no reply fits in; {way}", "FAIL")
    if longest > context:
        way = "such replies are forfeits; lower role.sampling.max_tokens, or role.thought=strip"
        return context, Line(
            what, f"{said}: up to {longest:,} with all replies full; {way}", "WARN"
        )
    return longest, Line(what, said)


def _prompts(
    cast: Mapping[str, Role], game: Game, episodes: Sequence[Episode]
) -> Iterator[tuple[str, int]]:
    """(text of a prompt without earlier replies, how many of those stand in it) per turn."""
    rules = {role: game.instructions(role) for role in cast}
    for episode in episodes:
        said: dict[str, list[str]] = {}
        for turn in episode.turns:
            seen = turn.observation
            if seen.role not in cast:
                continue
            role = cast[seen.role]
            mine = said.setdefault(seen.agent, [])
            mine.append(role.user_text(rules[seen.role], seen))
            window = len(mine) if role.window is None else role.window + 1
            kept = mine[-window:]
            system = role.system_text(rules[seen.role], seen.agent)
            yield "\n".join([system, *kept]), (len(kept) - 1) * (role.thought == "keep")


def _counter(policy: Policy, texts: Sequence[str]) -> Callable[[str], int]:
    """Counts the tokens of a text, by the vocabulary that would be built, or by its bytes."""
    if isinstance(policy.model, TinyModel):
        tokenizer = build_tokenizer(texts, policy.model.vocabulary, policy.model.tags)
        return lambda text: len(tokenizer.encode(text))
    return lambda text: math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def _credit(run: RunSettings, name: str, policy: Policy) -> Iterator[Line]:
    credit, what = policy.credit, f"credit of {name}"
    rule = type(credit).__name__
    settings: dict[str, Any] = (
        dataclasses.asdict(credit) if dataclasses.is_dataclass(credit) else {}
    )
    by = settings.get("by", ())
    if missing := policy.lacks(name):
        for sentence in missing:
            yield Line(what, f"{rule}: {sentence}", "FAIL")
    elif "group" in by and run.rollout.group_size < 2:
        yield Line(
            what,
            f"{rule} compares by {', '.join(by)}, and groups of 1 have nothing to compare: every "
            "advantage would be 0; set rollout.group_size=8, or credit.by=[role,agent]",
            "FAIL",
        )
    elif by and len(run.games) > 1 and not {"group", "game", "state_key"} & set(by):
        yield Line(what, f"{rule} pools the {len(run.games)} games; add game to credit.by", "WARN")
    else:
        yield Line(what, f"{rule} by {', '.join(by)}" if by else rule)


def _signals(name: str, policy: Policy) -> Iterator[Line]:
    judge = "the policy itself" if policy.judge is None else policy.judge.model
    for own, annotator in policy.annotators.items():
        asked = f", asking {judge}" if isinstance(annotator, Asking) else ""
        text = f"{', '.join(annotator.signals)}{asked}"
        unread = policy.credit.card.needs.isdisjoint(annotator.signals)
        if unread:
            text += f"; {type(policy.credit).__name__} says of none of them that it needs it"
        yield Line(f"signals of {name}: {own}", text, "WARN" if unread else "ok")


def _replays(run: RunSettings) -> Iterator[Line]:
    """Whether play can go on from stored turns, where that is done."""
    who = [name for name, policy in run.policies.items() if policy.reaches]
    if not who:
        return
    try:
        check_replays(run)
    except MarlError as error:
        yield Line("replays", str(error), "FAIL")
        return
    costs = [
        f"credit of {name}: {run.policies[name].credit.card.cost}"
        for name in who
        if run.policies[name].credit.card.resamples
    ]
    yield Line("replays", "; ".join(["every game can be played on from a stored turn", *costs]))


def _learning(run: RunSettings, name: str, policy: Policy) -> Iterator[Line]:
    learner = policy.learner
    steps = learner.epochs * learner.minibatches
    schedule = f"lr {learner.lr:g} {learner.schedule}"
    text = (
        f"{run.updates} updates of {steps} steps, {schedule}, micro-batches of "
        f"{learner.micro_tokens:,} tokens"
    )
    if learner.schedule != "constant" and learner.updates != run.updates:
        text += (
            f": the schedule ends at update {learner.updates}, the run at {run.updates}; set "
            f"learner.updates={run.updates}"
        )
        yield Line(f"learner of {name}", text, "WARN")
    else:
        yield Line(f"learner of {name}", text)
    if policy.engine.dtype != "float32" and learner.ratio_tolerance is not None:
        yield Line(
            f"precision of {name}",
            f"the engine samples in {policy.engine.dtype}, the trainer computes in float32; "
            f"learner.ratio_tolerance={learner.ratio_tolerance:g} nats between them stops the run; "
            "set learner.ratio_tolerance=null, or engine.dtype=float32",
            "FAIL" if learner.ratio_tolerance < 0.05 else "WARN",
        )


def _coldstart(run: RunSettings, name: str, policy: Policy) -> Iterator[Line]:
    cold = policy.coldstart
    if cold is None:
        return
    faults = [
        fault for game in run.games if (fault := _cannot_play(run, game, cold.player)) is not None
    ]
    try:
        purposeful(run.cast(name), cold.player)
    except MarlError as error:
        faults.append(str(error))
    text = f"{cold.games} games of {cold.player.name}, then {cold.fit.steps} supervised steps"
    for fault in faults:
        yield Line(f"cold start of {name}", fault, "FAIL")
    if not faults:
        yield Line(f"cold start of {name}", text)


def _cannot_play(run: RunSettings, game: str, player: Player) -> str | None:
    """What a player says against a game, found by having it make the first move; None = nothing."""
    table = run.makers()[game]()
    table.reset(seed=0)
    try:
        player.act(table, table.acting()[0], generator(run.seed, "plan", "move"))
    except MarlError as error:
        return f"{player.name} does not play {game}: {error}"
    return None


def _devices(
    run: RunSettings, sizes: Mapping[str, ModelSize | None], tokens: Mapping[str, int]
) -> Iterator[Line]:
    """Memory wanted on each device against what is there."""
    needed: dict[str, int] = {}
    for name, policy in run.policies.items():
        size = sizes[name]
        if size is None:
            continue
        takes = footprint(size, policy.learner, policy.engine, tokens[name])
        device = policy.engine.device
        needed[device] = needed.get(device, 0) + takes.certain
        cache = "unknown" if takes.cache is None else in_words(takes.cache)
        yield Line(
            f"memory of {name}",
            f"{in_words(takes.certain)} on {device} ({takes}); and activations of "
            f"{policy.learner.micro_tokens:,} tokens, and the engine's cache: at most {cache} with "
            f"{policy.engine.max_batch} requests of {tokens[name]:,} tokens",
        )
    for device, wanted in needed.items():
        yield _device(device, wanted)


def _device(device: str, wanted: int) -> Line:
    what = f"device {device}"
    if device == "cpu":
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        index = torch.device(device).index or 0
        if torch.cuda.device_count() <= index:
            return Line(
                what,
                f"{in_words(wanted)} are wanted at least, and this machine has "
                f"{torch.cuda.device_count()} GPUs; run it where there is one, or set "
                "engine.device=cpu",
                "WARN",
            )
        there = torch.cuda.get_device_properties(index).total_memory
    text = f"{in_words(wanted)} of {in_words(there)}"
    if wanted > there:
        way = "use a smaller model, or learner=lora, which keeps one copy and no moments of it"
        return Line(what, f"{text} are wanted at least; {way}", "FAIL")
    if wanted > 0.8 * there:
        return Line(what, f"{text}, little is left for cache and activations", "WARN")
    return Line(what, text)


def _evaluation(run: RunSettings) -> Iterator[Line]:
    evaluation = run.evaluation
    makers = run.makers()
    role = run.seats[evaluation.seat].role
    for game in evaluation.nash_conv:
        facts = entry(makers[game]())
        if facts.solver != "exact NashConv":
            text = f"{game} has none: {facts.solver}; take it out of evaluation.nash_conv"
            yield Line("NashConv", text, "FAIL")
        elif role.memory != "observation":
            text = f"{game}: role {role.name} has memory {role.memory}, it must be observation"
            yield Line("NashConv", text, "FAIL")
        else:
            thoughts = "" if evaluation.thought != "sampled" else f" {evaluation.thoughts}"
            yield Line("NashConv", f"{game}, thoughts {evaluation.thought}{thoughts}")
    games = evaluation.games or tuple(run.games)
    for name, player in evaluation.panel.items():
        faults = [f for game in games if (f := _cannot_play(run, game, player)) is not None]
        for fault in faults:
            yield Line(f"opponent {name}", fault, "FAIL")
        if not faults:
            seats = sum(len(makers[game]().possible_agents) for game in games)
            text = f"{evaluation.pairs * seats:,} games in {', '.join(games)}"
            yield Line(f"opponent {name}", f"{text} at every evaluation")
    if evaluation.success:
        yield Line("success", f"{evaluation.success} held-out episodes, sampled and greedy")
    if not (evaluation.nash_conv or evaluation.panel or evaluation.success):
        yield Line(
            "evaluation",
            "nothing measures progress; add +player@evaluation.panel.random=random",
            "WARN",
        )
    else:
        count = 1 + math.ceil(run.updates / evaluation.every)
        yield Line("evaluation", f"{count} times, every {evaluation.every} updates")
