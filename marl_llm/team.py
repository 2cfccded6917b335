"""The team: from settings to models, engines, trainers and seats.

`prepare` makes each policy's starting model (built or loaded, cold-started) and keeps it as a model
folder in the run; `engine`, `trainer` and `seats` then make the parts from that folder, in this
process or in any other, and `collect` has them play.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoTokenizer

from marl_llm import coldstart
from marl_llm.agents import Player
from marl_llm.agents.chat import Chat
from marl_llm.agents.scripted import Uniform
from marl_llm.annotate.material import Reach, Voice
from marl_llm.errors import ConfigError, GameError, ModelError, TrainingError
from marl_llm.games import Game
from marl_llm.learn.learner import Learner
from marl_llm.learn.supervised import fit
from marl_llm.rollout.attempts import attempted
from marl_llm.rollout.plans import Plan, balanced
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.rollout.room import check_room
from marl_llm.seeds import derive
from marl_llm.serve import Engine
from marl_llm.serve.models import device_of, load_model, model_folder
from marl_llm.serve.sources import PretrainedModel
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.settings import Judge, RunSettings
from marl_llm.store import Store, staleness
from marl_llm.store.episodes import Carrier, episodes_of, record_of
from marl_llm.trainer import Lesson, Trainer
from marl_llm.types import Episode

MODELS = "models"  # folder of a run, one model folder per policy


def use_threads(count: int | None) -> int:
    """Let torch compute with so many threads, None = as it does; how many that is.

    The order of a sum hangs on it, so all processes of a run take the same number.
    """
    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()


def settle() -> None:
    """Hide what is loaded by now from the garbage collector, and have it come more rarely.

    Libraries and models are a million objects that stay, and a rollout makes and drops some hundred
    thousand, none of them in circles. At its usual pace the collector would take a tenth of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def prepare(run: RunSettings, models: Path, stage: Callable[[str], None]) -> None:
    """Make every policy's starting model and keep it as a folder of its name.

    Args:
        run: the settings.
        models: where the folders go.
        stage: told what goes on now.
    """
    makers = {name: make for name, make in run.makers().items() if name in run.games}
    for name, policy in run.policies.items():
        cast = run.cast(name)
        cold = policy.coldstart
        episodes: list[Episode] = []
        goals: coldstart.Goals = {}
        if cold is not None:
            stage(f"cold start of {name}: scripted games")
            episodes = coldstart.scripted_games(makers, cold.player, cold.games, run.seed)
            goals = coldstart.pursued(episodes, makers, cast, cold.player)
        corpus = coldstart.texts(episodes, makers, cast, goals) if policy.model.needs_corpus else []
        model, tokenizer = policy.model.make(corpus, derive(run.seed, "weights", name))
        if cold is not None:
            stage(f"cold start of {name}: supervised training")
            chat = Chat(tokenizer)
            pairs = coldstart.demonstrations(episodes, makers, cast, chat, cold.thought, goals)
            fit(model, pairs, cold.fit, seed=derive(run.seed, "fit", name))
        folder = models / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def check_devices(run: RunSettings) -> None:
    """Refuse a run whose devices are not there, before anything is made.

    Raises:
        ModelError: naming the device and what to use instead.
    """
    for policy in run.policies.values():
        device_of(policy.engine.device)
        if policy.judge is not None:
            device_of(policy.judge.engine.device)


def check_models(run: RunSettings) -> None:
    """Refuse models given by a path where there is none; a name on the hub is believed.

    Raises:
        ModelError: naming the setting and what to give.
    """
    for name, policy in run.policies.items():
        if isinstance(policy.model, PretrainedModel):
            _check_model(f"policies.{name}.model.name", policy.model.name)
        if policy.judge is not None:
            _check_model(f"policies.{name}.judge.model", policy.judge.model)


def _check_model(where: str, name_or_path: str) -> None:
    try:
        model_folder(name_or_path)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None


def check_replays(run: RunSettings) -> None:
    """Refuse games that cannot be played on from a stored turn, as credit rules may ask.

    A random episode of each is cut in half and played on; it must come out as it was. Games of free
    text cannot be played at random and are checked when they are played on.

    Raises:
        GameError: naming the game.
    """
    makers = run.makers()
    for name in run.games:
        game = makers[name]()
        if not game.actions:
            continue
        seed = derive(run.seed, "replays")
        (plan,) = balanced(seed, 0, 1, 1, {name: game.roles}, [("random",)])
        (episode,) = _at_random(plan, makers, seed)
        half = replace(plan, opening=episode.turns[: len(episode.turns) // 2])
        (again,) = _at_random(half, makers, seed)
        if replace(again, seconds=episode.seconds) != episode:
            raise GameError(
                f"game {name!r} cannot be played on from a stored turn, which a credit rule or an "
                "annotator of this run does: an episode must be fixed by its seed and its moves; "
                f"see marl-llm games check {name}"
            )


def _at_random(plan: Plan, makers: Mapping[str, Callable[[], Game]], seed: int) -> list[Episode]:
    return play([plan], makers, {"random": Uniform()}, {}, seed=seed)


def engine(run: RunSettings, run_dir: Path, policy: str) -> TransformersEngine:
    """The server of a policy, with its starting weights."""
    return run.policies[policy].engine.serve(run_dir / MODELS / policy)


def learner(run: RunSettings, run_dir: Path, policy: str) -> Learner:
    """The learner of a policy, at version 0."""
    settings = run.policies[policy]
    model, _ = load_model(str(run_dir / MODELS / policy), device=settings.engine.device)
    return Learner(policy, model, settings.learner, seed=derive(run.seed, "learner", policy))


def trainer(run: RunSettings, run_dir: Path, policy: str, engines: Mapping[str, Engine]) -> Trainer:
    """The trainer of a policy, at version 0.

    Args:
        run: the settings.
        run_dir: the run folder.
        policy: what is trained.
        engines: by policy; they are asked only if the policy's settings say that it reaches them.
    """
    settings = run.policies[policy]
    return Trainer(
        policy,
        learner(run, run_dir, policy),
        settings.credit,
        {name: seat.role.sampling.temperature for name, seat in run.seats.items()},
        run.seed,
        settings.annotators,
        reach(run, run_dir, policy, engines) if settings.reaches else None,
    )


def reach(run: RunSettings, run_dir: Path, policy: str, engines: Mapping[str, Engine]) -> Reach:
    """What annotators and replays of a policy may use.

    Args:
        run: the settings.
        run_dir: the run folder.
        policy: whose.
        engines: by policy.
    """
    makers, who = run.makers(), seats(run, run_dir)
    idle: dict[str, list[Game]] = {}
    asked = run.policies[policy].judge

    def replay(plans: Sequence[Plan], players: Mapping[str, ModelSeat | Player]) -> list[Episode]:
        table = {**who, **players}
        return _play(run, makers, table, engines, plans, idle, derive(run.seed, "replays"))

    return Reach(
        games=makers,
        seats=who,
        scorer=engines[policy],
        judge=Voice(engines[policy], chat(run_dir, policy)) if asked is None else judge(asked),
        play=replay,
    )


def judge(settings: Judge) -> Voice:
    """A judge that is no policy of the run."""
    engine = settings.engine.serve(settings.model)
    return Voice(engine, Chat(AutoTokenizer.from_pretrained(settings.model)))


def seats(run: RunSettings, run_dir: Path) -> dict[str, ModelSeat | Player]:
    """Everybody who can sit down, by name.

    Raises:
        ConfigError: a scripted player has the name of a model's seat.
    """
    scripted = {**run.opponents, **run.evaluation.panel}
    for name in run.seats.keys() & scripted.keys():
        raise ConfigError(f"{name!r} is both a model's seat and a scripted player; rename one")
    chats = {policy: chat(run_dir, policy) for policy in run.policies}
    models: Mapping[str, ModelSeat | Player] = {
        name: ModelSeat(seat.role, chats[seat.policy], seat.policy)
        for name, seat in run.seats.items()
    }
    return {**models, **scripted}


def chat(run_dir: Path, policy: str) -> Chat:
    """Conversations in the words of a policy's tokenizer."""
    return Chat(AutoTokenizer.from_pretrained(run_dir / MODELS / policy))


def collect(
    run: RunSettings,
    makers: Mapping[str, Callable[[], Game]],
    who: Mapping[str, ModelSeat | Player],
    engines: Mapping[str, Engine],
    versions: Mapping[str, int],
    store: Store,
    carrier: Carrier,
    plans: Sequence[Plan],
    idle: dict[str, list[Game]],
    lock_step: bool = False,
) -> list[Episode]:
    """Play planned episodes by the run's rules and put them into the store of all who will learn.

    What a failure of the machinery made worthless is played again, and put as void if it fails
    every time.

    Args:
        run: the settings.
        makers: of fresh games, by name.
        who: can sit down, by name.
        engines: by policy.
        versions: of the weights at the start, for each policy that will learn from these games;
            what it sampled nothing in is so old.
        store: where to.
        carrier: of episodes in it.
        plans: what to play.
        idle: games kept from one call to the next: to make one costs more than to play it.
        lock_step: as in `rollout.play`.
    """
    episodes = attempted(
        lambda plans: _play(run, makers, who, engines, plans, idle, run.seed, lock_step),
        plans,
        run.rollout.retries,
    )
    check_room(episodes, {policy: engine.context for policy, engine in engines.items()})
    size = run.rollout.group_size
    for policy, version in versions.items():
        whole = run.policies[policy].whole  # annotators may read what the others saw and said
        records = [record_of(one, policy, size, version, whole, carrier) for one in episodes]
        store.put(policy, records)
    return episodes


def learn(
    run: RunSettings, trainer: Trainer, store: Store, carrier: Carrier, update: int, lease: float
) -> tuple[Lesson, int]:
    """Claim the games of an update and learn from them; the claim stays open.

    Args:
        run: the settings.
        trainer: of the policy whose topic it is.
        store: has the episodes.
        carrier: of episodes in it.
        update: whose games, all of which are in the store.
        lease: seconds until others may have them.

    Returns:
        The lesson, which also says how far behind the episodes were, and the claim to acknowledge.

    Raises:
        TrainingError: none that are fresh enough, in a complete group, wait in the store.
    """
    policy, version = trainer.policy, trainer.learner.version
    count = run.rollout.episodes // run.rollout.group_size
    claim = None
    for groups in range(count, 0, -1):  # fewer where all attempts at some have failed
        claim = store.claim(
            policy,
            groups,
            version - run.staleness(policy),
            lease,
            run.rollout.groups,
            (update + 1) * count,
        )
        if claim is not None:
            break
    if claim is None:
        raise TrainingError(
            f"no complete group of fresh episodes of update {update} waits for policy {policy!r} "
            f"at version {version}"
        )
    latest = {name: store.latest(name) for name in run.policies}
    versions = {name: weights.version for name, weights in latest.items() if weights is not None}
    behind = staleness(claim.records, policy, {**versions, policy: version})
    lesson = trainer.learn(episodes_of(claim.records, policy, carrier))
    stats = {f"store/staleness_of_{name}": float(updates) for name, updates in behind.items()}
    stats["store/episodes"] = float(len(claim.records))
    stats["store/waiting"] = float(store.counts(policy).waiting)
    stats["learn/version"] = float(trainer.learner.version)
    return replace(lesson, stats={**lesson.stats, **stats}), claim.id


def _play(
    run: RunSettings,
    makers: Mapping[str, Callable[[], Game]],
    who: Mapping[str, ModelSeat | Player],
    engines: Mapping[str, Engine],
    plans: Sequence[Plan],
    idle: dict[str, list[Game]],
    seed: int,
    lock_step: bool = False,
) -> list[Episode]:
    """Play by the run's rules."""
    rollout = run.rollout
    return play(
        plans,
        makers,
        who,
        engines,
        seed=seed,
        concurrency=rollout.concurrency,
        turn_seconds=rollout.turn_seconds,
        episode_seconds=rollout.episode_seconds,
        stall_seconds=rollout.stall_seconds,
        shaping=rollout.shaping,
        idle=idle,
        lock_step=lock_step,
    )


def token_texts(run_dir: Path, policy: str) -> Callable[[int], str]:
    """One token id of a policy as text."""
    tokenizer = AutoTokenizer.from_pretrained(run_dir / MODELS / policy)
    return lambda token: str(tokenizer.decode([token]))
