"""The report of a run folder as training leaves it: Kuhn poker, two seats, one policy."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.cluster import incidents
from marl_llm.errors import CheckpointError
from marl_llm.report.episodes import advantages_by_turn, write_episodes
from marl_llm.report.html import json_block, thinned, write_report
from marl_llm.report.metrics import MetricsLog, read
from marl_llm.report.replays import MAX_TOKENS, spread
from marl_llm.report.summary import metric_range, write_summary
from marl_llm.types import Episode, Finish, Observation, Outcome, Turn

UPDATES = 200
EVERY = 10
CARDS = ("J", "Q", "K")
# What a reply may hold: markup that would run, markup that would end the data block, entities.
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>&lt;</script><!--"
# One Nash policy of Kuhn poker (alpha = 1/3): P(bet) by card and history.
NASH_BET = {
    "J": 1 / 3, "Q": 0.0, "K": 1.0, "Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0, "Jb": 0.0, "Qb": 1 / 3,
    "Kb": 1.0, "Jpb": 0.0, "Qpb": 2 / 3, "Kpb": 1.0,
}  # fmt: skip
SAID = {
    "": "You act first.",
    "p": "The other player passed.",
    "b": "The other player bet.",
    "pb": "You passed, then the other player bet.",
}


class Page(HTMLParser):
    """What a browser would make of the text: its elements, and the text inside each kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}  # by tag, one entry per element
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        if tag not in ("meta", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, "elements must nest"

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts[tag][-1] += data

    @cached_property
    def data(self) -> dict:
        return json.loads(self.texts["script"][0])


def play(rng: np.random.Generator, update: int, episode: int, strange: str = "") -> Episode:
    """One game of a policy that is `update / UPDATES` of the way from uniform play to Nash."""
    deal = rng.permutation(3)[:2]
    history, turns = "", []
    while history not in ("pp", "pbp", "pbb", "bp", "bb"):
        seat = len(history) % 2
        key = CARDS[deal[seat]] + history
        mix = update / UPDATES
        bet = rng.random() < (1 - mix) * 0.5 + mix * NASH_BET[key]
        action = "bet" if bet else "pass"
        reply = f"I hold {CARDS[deal[seat]]}. {SAID[history]}\n<answer>{action}</answer>" + strange
        ids = tuple(reply.encode())
        turns.append(
            Turn(
                observation=Observation(
                    agent=f"player_{seat}", role="player", brief=key, key=key,
                    legal=("pass", "bet"),
                    text=f"Kuhn poker. Your card: {CARDS[deal[seat]]}. {SAID[history]}\n"
                    "You may pass or bet.",
                ),
                policy="self", player="self", prompt_ids=(1, 2, 3), ids=ids,
                logprobs=tuple(-float(x) for x in rng.exponential(0.3, len(ids))),
                versions=((update, 0, len(ids)),), reply=reply, action=action, fault=None,
                finish=Finish.STOP, reward=0.0, shaping=0.0,
            )
        )  # fmt: skip
        history += action[0]
    stake = 2.0 if history.endswith("bb") else 1.0
    winner = int(deal[1] > deal[0]) if history[-2:] in ("pp", "bb") else len(history) % 2
    returns = {f"player_{seat}": stake if seat == winner else -stake for seat in (0, 1)}
    for last in (-1, -2):
        turns[last] = replace(turns[last], reward=returns[turns[last].observation.agent])
    outcomes = {agent: Outcome.WIN if r > 0 else Outcome.LOSS for agent, r in returns.items()}
    return Episode(
        id=episode, attempt=0, game="kuhn_poker", group=episode // 2, seed=2**62 + episode,
        turns=tuple(turns), seats=dict.fromkeys(returns, "self"), returns=returns,
        outcomes=outcomes, terminated=True,
    )  # fmt: skip


def policy_table(update: int) -> dict:
    mix = 0.85 * update / UPDATES
    table = {}
    for key, nash in NASH_BET.items():
        bet = (1 - mix) * 0.5 + mix * nash
        table[key] = {
            "observation": f"Your card: {key[0]}. {SAID[key[1:]]}",
            "model": {"pass": 1 - bet, "bet": bet},
            "nash": {"pass": 1 - nash, "bet": nash},
            "reach": 1 / 3 / 2 ** max(0, len(key) - 1),
        }
    return {"kuhn_poker": {"players": 2, "table": table}}


def fake_run(run_dir: Path) -> Path:
    """A run folder such as training leaves, with hostile text wherever text comes from outside."""
    rng = np.random.default_rng(0)
    with MetricsLog(run_dir, clock=lambda: 0.0) as log:
        for update in range(UPDATES + 1):
            done = 1 - math.exp(-update / 60)
            noise = rng.normal(size=8)
            values = {
                "rollout/player/forfeit_share": max(0.0, 0.02 * (1 - done) + 0.003 * noise[0]),
                "rollout/player/reply_tokens": 14 - 2 * done + 0.2 * noise[1],
                "rollout/all/tokens_per_second": 4200 + 150 * noise[2],
                "learn/player/tokens_per_second": 18300 + 700 * noise[3],
                "learn/player/loss": -0.01 + 0.02 * noise[4] * math.exp(-update / 80),
                "learn/player/kl_nats": 0.06 * done + 0.004 * abs(noise[5]),
                "run/all/update_seconds": 0.9 + 0.05 * noise[6],
                "credit/player/advantage_std": 1 + 0.1 * noise[7],
            }
            if update % EVERY == 0:
                values["evaluate/player/nash_conv"] = 0.56 - 0.38 * done + 0.02 * noise[7]
                for name, gain in (("random", 0.16), ("minimax", 0.3)):
                    score = 0.5 - 0.2 * (name == "minimax") + gain * done + 0.01 * noise[1]
                    values[f"evaluate/player/score_{name}"] = score
                    values[f"evaluate/player/score_{name}_low"] = score - 0.03
                    values[f"evaluate/player/score_{name}_high"] = score + 0.03
            if update == 7:
                values["learn/player/loss"] = math.nan
            log.log(update, values)
    for update in (0, 40, 100, 200):
        episodes = [play(rng, update, 1000 * update + i) for i in range(5)]
        episodes.append(play(rng, update, 1000 * update + 5, HOSTILE))
        tokens = sum(len(turn.ids) for episode in episodes for turn in episode.turns)
        credit = rng.normal(size=tokens)
        write_episodes(
            run_dir, update, episodes, {"self": chr},
            advantages_by_turn(episodes, "self", credit),
        )  # fmt: skip
    policies = run_dir / "policies"
    policies.mkdir()
    for update in range(0, UPDATES + 1, 50):
        (policies / f"update_{update:04d}.json").write_text(json.dumps(policy_table(update)))
    (run_dir / "config.yaml").write_text(f"experiment: kuhn_selfplay\nnote: '{HOSTILE}'\n")
    rows = read(run_dir)
    write_summary(
        run_dir,
        {
            "experiment": "kuhn_selfplay", "seed": 0, "updates": UPDATES, "seconds": 172.4,
            "status": "finished", "game": "kuhn_poker", "tokens_per_second": 3890.0,
            "peak_memory_gb": 1.31,
            "nash_conv": metric_range(rows, "evaluate/player/nash_conv"),
            "references": {"uniform play": 11 / 12, "one move everywhere": 2 / 3},
        },
    )  # fmt: skip
    return run_dir


def report_of(run_dir: Path) -> Page:
    return Page(write_report(run_dir).read_text(encoding="utf-8"))


def begun(run_dir: Path) -> Path:
    """A run that has logged one number and nothing else."""
    with MetricsLog(run_dir) as log:
        log.log(0, {"learn/player/loss": 0.1})
    return run_dir


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "kuhn_selfplay")


@pytest.fixture(scope="module")
def page(run_dir: Path) -> Page:
    return report_of(run_dir)


def test_one_file_that_asks_no_network(page: Page):
    attributes = {name for _, attrs in page.tags for name in attrs}
    assert not attributes & {"src", "href", "srcset", "action", "onload", "onerror", "style"}
    assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "base", "form"}
    assert "url(" not in page.texts["style"][0] and "@import" not in page.texts["style"][0]
    # The only address is the name of SVG's namespace.
    script = page.texts["script"][1]
    assert script.count("http") == script.count("http://www.w3.org/2000/svg") == 1


def test_only_the_pages_own_script_may_run(page: Page):
    data, script = page.texts["script"]
    json.loads(data)
    policy = next(attrs["content"] for _, attrs in page.tags if "http-equiv" in attrs)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert policy.split("script-src ")[1] == f"'sha256-{digest}'"


def test_script_writes_text_and_never_markup(page: Page):
    script = page.texts["script"][1]
    for way_in in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert way_in not in script


def test_hostile_text_stays_text(page: Page):
    game = page.data["games"][-1]
    for turn in game["turns"]:
        assert "".join(text for text, _, _ in turn["tokens"]).endswith(HOSTILE)
    assert HOSTILE in page.texts["pre"][0]
    assert len(page.texts["script"]) == 2


def test_hostile_names_stay_text(tmp_path: Path):
    with MetricsLog(tmp_path) as log:
        log.log(0, {"evaluate/player/nash_conv": 0.5})
    summary = {"experiment": HOSTILE, "seed": HOSTILE, "updates": 0, "seconds": 1.0}
    write_summary(tmp_path, {**summary, "game": HOSTILE, "references": {HOSTILE: 0.7}})
    page = report_of(tmp_path)
    assert page.texts["h1"] == [HOSTILE] and page.texts["title"][0].startswith(HOSTILE)
    assert page.data["charts"][0]["references"][1] == {"name": HOSTILE, "value": 0.7}
    assert len(page.texts["script"]) == 2


# Any character at all, lone surrogates too.
ANY_TEXT = st.text(st.characters(exclude_categories=()))


@settings(deadline=None)  # a busy machine is no failure
@given(st.recursive(ANY_TEXT | st.integers(), st.lists, max_leaves=10))
def test_json_block_is_the_same_json_inside_a_page(value):
    assert "<" not in json_block(value)
    page = Page(f"<html><script>{json_block(value)}</script></html>")
    assert json.loads(page.texts["script"][0]) == value


def test_headline_chart_comes_first_with_its_references(page: Page):
    chart = page.data["charts"][0]
    assert chart["headline"] and [line["label"] for line in chart["lines"]] == ["NashConv"]
    values = {line["name"]: line["value"] for line in chart["references"]}
    assert values == {
        "Nash equilibrium": 0, "uniform play": 11 / 12, "one move everywhere": 2 / 3
    }  # fmt: skip
    assert not any(other["headline"] for other in page.data["charts"][1:])


def test_every_metric_is_in_a_chart_or_under_the_rest(page: Page):
    data = page.data
    charted = {
        line[name] for chart in data["charts"] for line in chart["lines"]
        for name in ("key", "low", "high")
    }  # fmt: skip
    assert set(data["values"]) <= charted | set(data["rest"])
    assert data["rest"] == ["credit/player/advantage_std"]
    assert all(len(values) == len(data["updates"]) == 201 for values in data["values"].values())
    assert data["values"]["learn/player/loss"][7] is None  # logged as NaN


def test_result_is_readable_without_scripts(page: Page):
    table = page.texts["table"][0]
    for text in ("NashConv", "score against random", "forfeits", "reply length", "lower"):
        assert text in table
    marks = [attrs["class"] for tag, attrs in page.tags if tag == "td" and "class" in attrs]
    assert marks[:3] == ["better"] * 3 and table.count("✓ better") == 3  # NashConv, two scores
    last = page.data["values"]["evaluate/player/nash_conv"][-1]
    assert f"{last:.3f}" in table
    assert "2:52" in page.texts["section"][0]  # 172.4 seconds


def test_a_result_older_than_the_run_says_of_which_update_it_is(tmp_path: Path, page: Page):
    with MetricsLog(tmp_path) as log:
        for update, value in ((0, 0.9), (10, 0.2)):
            log.log(update, {"evaluate/player/nash_conv": value})
        log.log(13, {"learn/player/loss": 0.1})
    tiles, _, table = report_of(tmp_path).texts["section"][:3]
    assert "at update 10, from 0.900" in tiles and "0.200 (at 10)" in table
    assert "at update 200, from" not in page.texts["section"][0]
    assert "(at" not in page.texts["table"][0]


def test_what_a_paper_should_say_is_there_without_scripts(page: Page):
    facts = page.texts["details"][1]
    assert "GPU-hours in all" in facts and "not stated" in facts
    assert "score: 1 for a win" in facts
    # "should" was cut in two where the column was made as narrow as its letters allow.
    assert re.search(r"\.facts td\.mark \{[^}]*white-space: nowrap", page.texts["style"][0])


def test_policy_stands_beside_nash(page: Page):
    policies = page.data["policies"]
    assert [policy["update"] for policy in policies] == [0, 50, 100, 150, 200]
    last = policies[-1]
    assert last["total"] == 12 and [state["key"] for state in last["states"]] == list(NASH_BET)
    jack = last["states"][0]
    # 85 % of the way: P(bet) = 0.15 · 1/2 + 0.85 · 1/3 = 0.358333, off 1/3 by 0.025.
    assert jack["actions"][1] == {"name": "bet", "model": 0.358333, "nash": 0.333333}
    assert jack["gap"] == pytest.approx(0.025)


def test_large_policy_keeps_the_most_reached_states(tmp_path: Path):
    folder = begun(tmp_path) / "policies"
    folder.mkdir()
    entry = {"observation": "", "model": {"fold": 1.0}, "nash": {"call": 1.0}}
    table = {f"s{i}": {**entry, "reach": i / 1000} for i in range(936)}
    for update in (0, 5, 10):
        (folder / f"update_{update:04d}.json").write_text(
            json.dumps({"large": {"table": table}, "small": {"table": {"s0": entry}}})
        )
    policies = report_of(tmp_path).data["policies"]
    small = [policy["update"] for policy in policies if policy["game"] == "small"]
    assert small == [0, 5, 10], "every game keeps its tables, whatever the size of another one"
    policies = [policy for policy in policies if policy["game"] == "large"]
    assert [policy["update"] for policy in policies] == [0, 10]
    assert [state["key"] for state in policies[1]["states"]] == [f"s{i}" for i in range(636, 936)]
    # All mass on another action than Nash: every decision would have to change.
    assert policies[1]["states"][0]["gap"] == 1.0


def test_games_carry_credit_seats_and_ends(page: Page):
    games = page.data["games"]
    assert len(games) == page.data["recorded"] == 24
    game = games[0]
    assert {end["outcome"] for end in game["ends"]} == {"win", "loss"}
    assert [turn["seat"] for turn in game["turns"]] == [i % 2 for i in range(len(game["turns"]))]
    assert game["turns"][-1]["reward"] + game["turns"][-2]["reward"] == 0
    assert game["seed"] == str(2**62)  # as text: too large for a number in a browser
    sizes = [abs(t[2]) for g in games for turn in g["turns"] for t in turn["tokens"]]
    above = sum(size > page.data["scale"] for size in sizes) / len(sizes)
    assert above == pytest.approx(0.05, abs=0.001)


def test_too_many_games_leave_some_of_every_update(tmp_path: Path):
    begun(tmp_path)
    rng = np.random.default_rng(0)
    for update in (0, 10, 20):
        games = [play(rng, update, i, "x" * 1500) for i in range(9)]
        write_episodes(tmp_path, update, games, {"self": chr}, {})
    data = report_of(tmp_path).data
    tokens = sum(len(turn["tokens"]) for game in data["games"] for turn in game["turns"])
    assert data["recorded"] == 27 and 50_000 < tokens <= MAX_TOKENS
    per_update = [sum(game["update"] == at for game in data["games"]) for at in (0, 10, 20)]
    assert min(per_update) >= 2 and max(per_update) - min(per_update) <= 2
    assert data["scale"] == 1.0  # no token has credit


def test_run_that_has_only_begun_has_a_report(tmp_path: Path):
    page = report_of(begun(tmp_path))
    assert page.texts["h1"] == [tmp_path.name]
    assert page.data["games"] == page.data["policies"] == []
    assert "Nothing was measured twice" in page.texts["table"][0]


def test_folder_without_metrics_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        write_report(tmp_path)


def test_damaged_policy_is_named(tmp_path: Path):
    (begun(tmp_path) / "policies").mkdir()
    (tmp_path / "policies" / "update_0010.json").write_text('{"kuhn": {"players": 2}}')
    with pytest.raises(CheckpointError, match=r"update_0010\.json is no file of policy tables"):
        write_report(tmp_path)


def test_lone_surrogate_does_not_stop_the_report(tmp_path: Path):
    begun(tmp_path)
    game = play(np.random.default_rng(0), 0, 0)
    write_episodes(tmp_path, 0, [game], {"self": lambda token: "\ud800"}, {})
    write_summary(tmp_path, {"experiment": "\udfff", "seed": 0, "updates": 0, "seconds": 1.0})
    page = report_of(tmp_path)
    assert page.data["games"][0]["turns"][0]["tokens"][0][0] == "\ud800"
    assert page.texts["h1"] == ["?"]


def delegation() -> Episode:
    """A planner asks two at once, one of whom asks a third; two seats are never called."""
    roles = ("planner", "executor_0", "executor_1", "opener_0", "executor_2", "opener_1")
    moves = (
        ("planner", "open A B", None), ("executor_0", HOSTILE, 0), ("executor_1", "key c", 0),
        ("opener_0", "key a", 1), ("executor_0", "done", 0), ("planner", "done", None),
    )  # fmt: skip
    turns = [
        Turn(
            observation=Observation(
                agent=agent, role=agent.partition("_")[0], text=HOSTILE, brief="", legal=None,
                key="k", parent=parent,
            ),
            policy="self", player="self", prompt_ids=(1,), ids=tuple(action.encode())[:2],
            logprobs=(-0.1, -0.2), versions=((0, 0, 2),), reply=action[:2], action=action,
            fault=None, finish=Finish.STOP, reward=0.0, shaping=0.0, parent=parent,
        )
        for agent, action, parent in moves
    ]  # fmt: skip
    won = {"planner": 1.0, "executor_0": 1.0, "executor_1": 0.1, "opener_0": 1.0}
    outcomes = {
        agent: Outcome.ABSENT if agent not in won
        else Outcome.WIN if won[agent] == 1 else Outcome.LOSS
        for agent in roles
    }  # fmt: skip
    return Episode(
        id=7, attempt=0, game="needle_crates", group=0, seed=5, turns=tuple(turns),
        seats=dict.fromkeys(roles, "self"), returns=dict.fromkeys(roles, 0.0) | won,
        outcomes=outcomes, terminated=True,
    )  # fmt: skip


def delegated(run_dir: Path) -> Path:
    """A run folder with that one game, whose tokens have the credits 0, 1, 2 and so on."""
    begun(run_dir)
    game = delegation()
    credit = np.arange(12.0)
    credit[4] = math.nan  # a token of executor_1 without credit
    write_episodes(run_dir, 0, [game], {"self": chr}, advantages_by_turn([game], "self", credit))
    return run_dir


def test_a_delegation_is_a_tree_of_calls_with_their_credit(tmp_path: Path):
    (game,) = report_of(delegated(tmp_path)).data["games"]
    assert game["delegation"] and game["uncalled"] == 2
    shown = [
        (c["caller"], c["turn"], c["agent"], c["turns"], c["asked"], c["last"], c["outcome"])
        for c in game["calls"]
    ]
    assert shown == [
        ("planner", 0, "executor_0", [1, 4], "open A B", "done", "win"),
        ("planner", 0, "executor_1", [2], "open A B", "key c", "loss"),
        ("executor_0", 1, "opener_0", [3], HOSTILE, "key a", "win"),
    ]
    assert [call["pay"] for call in game["calls"]] == [1.0, 0.1, 1.0]
    # Tokens 2, 3 and 8, 9; token 5 alone; tokens 6, 7.
    assert [call["credit"] for call in game["calls"]] == [22 / 4, 5.0, 6.5]


def test_a_plain_game_has_no_calls(page: Page):
    assert not any(game["delegation"] or game["calls"] for game in page.data["games"])


BROWSER = shutil.which("chromium")


def drawn(path: Path, profile: Path) -> str:
    """The page as a browser has made it."""
    assert BROWSER is not None
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    words += [f"--user-data-dir={profile}", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run(
        [BROWSER, *words, path.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_browser_nests_each_call_under_the_turn_that_made_it(tmp_path: Path):
    text = drawn(write_report(delegated(tmp_path)), tmp_path / "profile")
    tree = text[text.index('<div class="tree">') :]
    order = re.findall(r'<details class="call"|</article></details>|<b>(\w+)</b><span>turn', tree)
    opened = re.findall(r'<details class="call"|</article></details>|<b>\w+</b><span>turn \d', tree)
    assert [name for name in order if name] == [
        "planner", "executor_0", "opener_0", "executor_0", "executor_1", "planner"
    ]  # fmt: skip
    depth, depths = 0, {}
    for each in opened:
        depth += each.startswith("<details") - each.startswith("</article")
        if "turn" in each:
            depths[int(each[-1])] = depth
    assert depths == {1: 0, 2: 1, 4: 2, 5: 1, 3: 1, 6: 0}
    assert "<script>alert(1)" not in tree and "3 calls, 2 agents never called" in tree


def test_staleness_is_shown_by_policy_once_there_is_any(tmp_path: Path, page: Page):
    assert page.data["staleness"] == []
    with MetricsLog(tmp_path) as log:
        for update, behind in ((1, 0), (2, 1), (3, 1), (4, 2)):
            own = {"store/a/staleness_of_a": behind, "store/a/staleness_of_b": 9}
            log.log(update, own | {"store/b/staleness_of_b": 0})
    assert report_of(tmp_path).data["staleness"] == [
        {"policy": "a", "lessons": 4, "shares": [0.25, 0.5, 0.25]},
        {"policy": "b", "lessons": 4, "shares": [1.0, 0.0, 0.0]},
    ]


def test_no_staleness_at_all_is_no_chart(tmp_path: Path):
    with MetricsLog(tmp_path) as log:
        log.log(1, {"store/a/staleness_of_a": 0, "store/a/staleness_of_b": 2})
    assert report_of(tmp_path).data["staleness"] == []


def test_incidents_of_a_run_are_listed(tmp_path: Path, page: Page):
    assert not any("broke" in text for text in page.texts["summary"])
    incidents.note(begun(tmp_path), f"the engine had ended {HOSTILE}")
    incidents.note(tmp_path, "the store had ended")
    found = report_of(tmp_path)
    assert "What broke and was put right: 2 incidents" in found.texts["summary"]
    assert HOSTILE in found.texts["pre"][0] and "the store had ended" in found.texts["pre"][0]


def test_alarms_stand_first_and_only_where_something_rings(tmp_path: Path, page: Page):
    assert "alarms" not in {attrs.get("class") for _, attrs in page.tags}
    with MetricsLog(tmp_path) as log:
        for update in range(1, 13):
            log.log(update, {"rollout/planner/delegation_rate": 0.0})
    found = report_of(tmp_path)
    assert next(attrs["class"] for tag, attrs in found.tags if tag == "section") == "alarms"
    assert found.texts["li"] == [
        "never delegates planner calls somebody in 0.0 % of its episodes "
        "(mean of 10 updates; since update 10)"
    ]


def test_thinning_keeps_evaluations_and_the_last_row():
    rows = [{"update": i, "learn/player/loss": 0.0} for i in range(1000)]
    rows[3]["evaluate/player/nash_conv"] = 0.5
    kept = [row["update"] for row in thinned(rows, 100)]
    assert kept == sorted({*range(0, 1000, 10), 3, 999})
    assert thinned(rows[:100], 100) == rows[:100]


def test_spread_keeps_both_ends():
    assert spread(list(range(10)), 4) == [0, 3, 6, 9]
    assert spread([1, 2], 4) == [1, 2]
