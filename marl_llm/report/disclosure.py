"""What a paper on credit assignment should say of a run, as far as the run knows it.

Two lists of a survey (arXiv 2604.09459): fourteen things to report, and six fields that say what a
credit rule's numbers mean. They are filled in from the configuration, the metrics and the stored
games. What one run cannot know, such as how another rule fared on the same model, is left to the
author: "not stated".
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from marl_llm.credit.card import Card
from marl_llm.credit.survey import TIERS, annotators, survey
from marl_llm.errors import MarlError
from marl_llm.report.episodes import RecordedEpisode
from marl_llm.report.metrics import Row, series
from marl_llm.targets import OURS, module_of

Config = Mapping[str, Any]

NOT_STATED = "not stated"
STATES = {
    "observed": "observed: turns of comparable episodes, each after its own history",
    "matched": "matched: turns at equal information states",
    "restored": "restored: play goes on from the very state",
}
INTERVENTIONS = {
    "restored": "replays from restored states",
    "observational": "none: actions are the policy's own samples",
    "model-relative": "none in play: a model says what another action would have brought",
    "proxy": "none: a prediction or a label stands for the effect",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to report."""

    name: str
    said: str | None  # None = the run does not know it
    must: bool = True  # else it should be reported


@dataclass(frozen=True, slots=True)
class Rule:
    """The credit rule of a policy, as its configuration names it."""

    policy: str
    name: str
    card: Card | None  # None = a class of another package, whose code a report does not run
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """All that a report reads of a run."""

    config: Config
    rows: Sequence[Row]
    summary: Mapping[str, Any]
    games: Sequence[RecordedEpisode]  # the newest that are stored

    def rules(self) -> list[Rule]:
        """The credit rule of each policy."""
        return [rule_of(name, at(policy, "credit")) for name, policy in self.policies.items()]

    @property
    def policies(self) -> Config:
        """The nodes of the policies, none where the configuration is not as it should be."""
        return mapping(at(self.config, "policies"))

    def mean(self, part: str, quantity: str) -> float | None:
        """Mean over the updates of a quantity, policies summed."""
        keys = {key for row in self.rows for key in row}
        found = [
            np.mean(values)
            for key in keys
            if key.startswith(f"{part}/") and key.endswith(f"/{quantity}")
            if (values := series(self.rows, key)[1])
        ]
        return float(sum(found)) if found else None

    def last(self, key: str) -> float | None:
        """The last value of a metric."""
        values = series(self.rows, key)[1]
        return values[-1] if values else None


def read_config(path: Path) -> Config:
    """The configuration of a run; empty where it is missing or cannot be read."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, Mapping) else {}


def at(config: Any, *path: str) -> Any:
    """What stands at a place of a configuration, None if nothing does."""
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def mapping(node: Any) -> Config:
    """A node as a mapping, empty if it is something else."""
    return node if isinstance(node, Mapping) else {}


def rule_of(policy: str, node: Any) -> Rule:
    """The rule that a node names."""
    given = dict(mapping(node))
    target = str(given.pop("_target_", ""))
    name = target.rpartition(".")[2]
    try:
        made = vars(module_of(target, (OURS,))).get(name)
    except MarlError:
        made = None
    if not dataclasses.is_dataclass(made):
        return Rule(policy, name or "a rule without a name", None, given)
    usual = {field.name: field.default for field in dataclasses.fields(made)}
    card = vars(made).get("card")
    known = card if isinstance(card, Card) else None
    return Rule(policy, known.name if known else name, known, {**usual, **given})


def checklist(run: Run) -> list[Item]:
    """The fourteen things to report."""
    rules = run.rules()
    return [
        Item("base model and version", _models(run)),
        Item("training data and filtering", _data(run)),
        Item("credit granularity", _each(rules, lambda card: f"one number per {card.granularity}")),
        Item("methodology family", _each(rules, lambda card: card.methodology)),
        Item("an episode-level baseline on the same base model", _baseline(rules)),
        Item("equal compute, or an explicit comparison", _compute(run)),
        Item("benchmark and split", _benchmark(run)),
        Item("definition of the metric", _metric(run)),
        Item("GPU-hours in all", _hours(run)),
        Item("mean length of a trajectory", _length(run)),
        Item("three seeds or more, with their variance", _seeds(run), must=False),
        Item("the credit rule ablated alone", None, must=False),
        Item("overhead of the credit rule", _overhead(run, rules), must=False),
        Item("distribution of trajectory lengths", _lengths(run.games), must=False),
    ]


def credit_card(run: Run, rule: Rule) -> list[Item]:
    """The six fields that say what a rule's numbers mean."""
    if rule.card is None:
        names = ("unit and estimand", "effective state", "source of the intervention",
                 "downstream protocol", "support and uncertainty", "use in the update")  # fmt: skip
        return [Item(name, None) for name in names]
    answers = survey(rule.card, rule.settings)
    against = f", compared with the {answers.baseline}" if answers.baseline else ""
    source = None
    if answers.tier is not None:
        who = annotators(rule.card)
        source = INTERVENTIONS[answers.tier] + (f" ({', '.join(who)})" if who else "")
        source += f". Evidence: {answers.tier}, {TIERS[answers.tier]}"
    return [
        Item("unit and estimand", f"{answers.unit}: {answers.estimand}{against}"),
        Item("effective state", STATES[answers.reference]),
        Item("source of the intervention", source),
        Item("downstream protocol", _protocol(run, rule)),
        Item("support and uncertainty", _support(run, rule)),
        Item("use in the update", _interface(run, rule)),
    ]


def as_html(run: Run) -> str:
    """Both lists as the body of a section."""
    parts = ["<h3>Reporting checklist</h3>", _table(checklist(run), marks=True)]
    for rule in run.rules():
        title = f"What the credit of policy {rule.policy} means: {rule.name}"
        parts += [f"<h3>{html.escape(title)}</h3>", _table(credit_card(run, rule), marks=False)]
    return "\n".join(parts)


def _table(items: Sequence[Item], *, marks: bool) -> str:
    rows = []
    for item in items:
        mark = f'<td class="mark">{"must" if item.must else "should"}</td>' if marks else ""
        said = html.escape(item.said or NOT_STATED)
        said = said.replace(NOT_STATED, f'<span class="missing">{NOT_STATED}</span>')
        rows.append(f'<tr><th scope="row">{html.escape(item.name)}</th>{mark}<td>{said}</td></tr>')
    return f'<div class="scroll"><table class="facts">{"".join(rows)}</table></div>'


# -- the checklist --------------------------------------------------------------------------------


def _each(rules: Sequence[Rule], say: Any) -> str | None:
    """What a card says, by policy where there are several."""
    said = [(rule, say(rule.card)) for rule in rules if rule.card is not None]
    if not said:
        return None
    several = len(rules) > 1
    return "; ".join(
        (f"{rule.policy}: " if several else "") + f"{text} ({rule.name})" for rule, text in said
    )


def _models(run: Run) -> str | None:
    said = []
    for name, policy in run.policies.items():
        model = mapping(at(policy, "model"))
        settings = {key: value for key, value in model.items() if key not in ("_target_", "name")}
        facts = ", ".join(f"{key} {value}" for key, value in settings.items())
        kind = str(model.get("_target_", "")).rpartition(".")[2]
        about = f"{name}: {model.get('name', kind)}" + (f" ({facts})" if facts else "")
        if "name" not in model:
            about += f", made for this run from seed {run.config.get('seed')}"
        elif "revision" not in model:
            about += f", revision {NOT_STATED}"
        said += [about] if model else []
    return "; ".join(said) or None


def _data(run: Run) -> str | None:
    games = mapping(at(run.config, "games"))
    if not games:
        return None
    said = f"own play of {', '.join(map(str, games))}"
    episodes, updates = at(run.config, "rollout", "episodes"), run.summary.get("updates")
    if isinstance(episodes, int) and isinstance(updates, int):
        said += f": {updates} updates of {episodes} episodes, {updates * episodes:,} in all"
    for name, policy in run.policies.items():
        if cold := mapping(at(policy, "coldstart")):
            teacher = _player(at(cold, "player"))
            said += f"; before, policy {name} learned from scripted games of {teacher}"
    filtered = "no episode is left out"
    if at(run.config, "runtime", "name") == "ray":
        filtered = f"left out is what is more than {_oldest(run)} updates old"
    if lost := run.mean("credit", "unscored_turns"):
        filtered += f", and {lost:.1f} turns per update without a known reward"
    return f"{said}; {filtered}"


def _oldest(run: Run) -> str:
    """How many updates behind records may be; where policies differ, each with its name."""
    usual = at(run.config, "runtime", "max_staleness") or 0
    own = {name: at(policy, "max_staleness") for name, policy in run.policies.items()}
    limits = {name: usual if limit is None else limit for name, limit in own.items()}
    if len(set(limits.values())) > 1:
        return ", ".join(f"{limit} ({name})" for name, limit in limits.items())
    return str(next(iter(limits.values()), usual))


def _player(node: Any) -> str:
    """A scripted player by its name or its class; one that changes another names that too."""
    own, inner = (
        str(at(player, "name") or at(player, "_target_")).rpartition(".")[2]
        for player in (node, at(node, "player"))
    )
    return f"{own} over {inner}" if at(node, "player") else own


def _baseline(rules: Sequence[Rule]) -> str | None:
    if rules and all(rule.card and rule.card.granularity == "response" for rule in rules):
        return f"this run is one: {', '.join(rule.name for rule in rules)}"
    return None


def _compute(run: Run) -> str | None:
    keys = {key for row in run.rows for key in row
            if key.startswith("learn/") and key.endswith("/tokens")}  # fmt: skip
    tokens = sum(sum(series(run.rows, key)[1]) for key in keys)
    if not tokens:
        return None
    return f"this run: {tokens:,.0f} tokens sampled and trained on; a comparison is {NOT_STATED}"


def _benchmark(run: Run) -> str | None:
    config = run.config
    measured = at(config, "evaluation", "games") or list(mapping(at(config, "games")))
    held_out = set(mapping(at(config, "held_out"))) & set(measured)
    said = []
    if nash := at(config, "evaluation", "nash_conv"):
        said.append(f"NashConv of {', '.join(nash)}")
    if panel := mapping(at(config, "evaluation", "panel")):
        pairs = at(config, "evaluation", "pairs")
        against = f"matches in {', '.join(measured)} against {', '.join(panel)}"
        said.append(against + (f", {pairs} paired deals each" if pairs else ""))
    if not said:
        return None
    split = f"held out: {', '.join(sorted(held_out))}" if held_out else "the games of training"
    return f"{'; '.join(said)} ({split})"


def _metric(run: Run) -> str | None:
    keys = {key for row in run.rows for key in row if key.startswith("evaluate/")}
    said = []
    if any("nash_conv" in key for key in keys):
        said.append("NashConv: what all players together could gain by best responses")
    if any("/score" in key for key in keys):
        said.append("score: 1 for a win, ½ for a draw, 0 for a loss or a forfeit, mean over games")
    return "; ".join(said) or None


def _hours(run: Run) -> str | None:
    seconds = run.summary.get("seconds")
    devices = {at(policy, "engine", "device") for policy in run.policies.values()}
    if not devices or None in devices or not isinstance(seconds, int | float):
        return None
    gpus = {str(device) for device in devices} - {"cpu"}
    if not gpus:
        took = f"{seconds / 3600:.2f} hours" if seconds >= 360 else f"{seconds:.0f} seconds"
        return f"0: it ran on CPUs, {took} of training and measuring"
    hours = seconds / 3600 * len(gpus)
    figure = f"{hours:.2f}" if hours >= 0.1 else f"{hours:.2g}"
    return f"{figure}, of training and measuring on {', '.join(sorted(gpus))}"


def _length(run: Run) -> str | None:
    turns, tokens = run.mean("rollout", "game_turns"), run.mean("rollout", "reply_tokens")
    if turns is None and tokens is None:
        return None
    said = [f"{turns:.1f} turns, all agents together"] if turns is not None else []
    said += [f"{tokens:.1f} sampled tokens per turn"] if tokens is not None else []
    return f"{'; '.join(said)}; mean over all updates"


def _seeds(run: Run) -> str | None:
    seed = run.summary.get("seed")
    return (
        None if seed is None else f"one run, seed {seed}; the variance over seeds is {NOT_STATED}"
    )


def _overhead(run: Run, rules: Sequence[Rule]) -> str | None:
    took, update = run.mean("credit", "seconds"), run.mean("run", "update_seconds")
    costs = {rule.card.cost for rule in rules if rule.card is not None and rule.card.cost}
    said = [f"{', '.join(sorted(costs))} per episode"] if costs else []
    if took is not None and update:
        said.append(
            f"{1000 * took:.0f} ms of an update's {update:.1f} s, {100 * took / update:.1f} %"
        )
    if not costs and rules and all(rule.card for rule in rules):
        said.append("nothing beside the episodes")
    return "; ".join(said) or None


def _lengths(games: Sequence[RecordedEpisode]) -> str | None:
    if not games:
        return None
    turns = [len(game.episode.turns) for game in games]
    tokens = [sum(len(turn.ids) for turn in game.episode.turns) for game in games]
    said = "; ".join(
        f"{what} from {low:.0f} to {high:.0f}, quartiles {first:.0f}, {middle:.0f}, {third:.0f}"
        for what, values in (("turns", turns), ("sampled tokens", tokens))
        for low, first, middle, third, high in [np.quantile(values, [0, 0.25, 0.5, 0.75, 1])]
    )
    return f"{said} ({len(games)} stored episodes of update {games[0].update})"


# -- the card of a rule ---------------------------------------------------------------------------


def _protocol(run: Run, rule: Rule) -> str:
    lineups = at(run.config, "rollout", "lineups")
    against = f" in the line-ups {lineups}" if lineups else ""
    said = f"all play on as they are{against}, to the end of the episode or its turn limit"
    gamma = rule.settings.get("gamma")
    return said + (f"; discount {gamma:g}" if isinstance(gamma, int | float) else "")


def _support(run: Run, rule: Rule) -> str | None:
    counts = {
        what: run.last(f"credit/{rule.policy}/{key}")
        for what, key in (
            ("compared cells", "groups"),
            ("of them with one member", "singletons"),
            ("with equal returns only", "zero_std_groups"),
            ("turns that took a wider cell's mean", "fallbacks"),
            ("turns without a label", "missing_labels"),
        )
    }
    said = ", ".join(f"{value:,.0f} {what}" for what, value in counts.items() if value is not None)
    return f"{said} in the last update; uncertainty is {NOT_STATED}" if said else None


def _interface(run: Run, rule: Rule) -> str:
    assert rule.card is not None  # a rule without a card has no fields at all
    learner = at(run.config, "policies", rule.policy, "learner")
    loss = str(at(learner, "loss", "_target_") or "").rpartition(".")[2]
    mean = at(learner, "aggregation", "mode")
    said = "an advantage, " + (
        "the same for all tokens of a turn" if rule.card.level == "turn" else "one per token"
    )
    said += f", in the loss {loss}" if loss else ""
    said += f", averaged by {mean}" if mean else ""
    return f"{said}; whether the rule was ablated alone is {NOT_STATED}"
