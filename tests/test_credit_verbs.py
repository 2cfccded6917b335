"""`marl-llm credit list, choose, compare, explain`: what they print, write and refuse."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.image import imread

from marl_llm import config
from marl_llm.agents.scripted import Uniform
from marl_llm.cli import main
from marl_llm.commands import credit_choose
from marl_llm.commands.credit_explain import adds_up
from marl_llm.credit import assign
from marl_llm.credit.columns import from_episodes
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.report.agreement import beside_their_like
from marl_llm.report.episodes import advantages_by_turn, read_episodes, write_episodes
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import play

RULE = {"_target_": "marl_llm.credit.mars.MarsByState", "min_count": 2}
OTHER = {"_target_": "marl_llm.credit.grpo.GRPO"}
UPDATES = {5: 0, 10: 100}  # update -> number of its first episode
HOSTILE = "[bold]\x1b[2J"  # markup and a control sequence


def spoken(turn, policy, rng):
    """A scripted move as if a model had said it."""
    n = int(rng.integers(1, 6))
    return replace(
        turn, policy=policy, ids=tuple(range(n)), logprobs=(-0.5,) * n, versions=((1, 0, n),),
        reply=f"{HOSTILE}{turn.action}",
    )  # fmt: skip


def store(run_dir: Path, update: int, first: int, policies: tuple[str, str]) -> None:
    """Eight games in two groups, as the journal keeps them."""
    rng = np.random.default_rng(update)
    agents = {"tictactoe": TicTacToe().possible_agents}
    plans = balanced(3, update, 8, 4, agents, [("random",)])
    seats = dict(zip(agents["tictactoe"], policies, strict=True))
    played = play(plans, {"tictactoe": TicTacToe}, {"random": Uniform()}, {}, seed=3)
    episodes = [
        replace(
            game,
            id=first + number,
            turns=tuple(spoken(t, seats[t.observation.agent], rng) for t in game.turns),
        )
        for number, game in enumerate(played)
    ]
    credit = {}
    for policy in set(policies):
        tokens = sum(len(t.ids) for e in episodes for t in e.turns if t.policy == policy)
        credit |= advantages_by_turn(episodes, policy, rng.normal(size=tokens))
    write_episodes(run_dir, update, episodes, dict.fromkeys(policies, str), credit)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """A run in self-play that has stored games twice."""
    folder = tmp_path_factory.mktemp("runs") / "ttt"
    for update, first in UPDATES.items():
        store(folder, update, first, ("main", "main"))
    settings = {"policies": {"main": {"credit": RULE}}, "rollout": {"episodes": 384}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


@pytest.fixture(scope="module")
def duel(tmp_path_factory) -> Path:
    """A run of two policies, one against the other."""
    folder = tmp_path_factory.mktemp("runs") / "duel"
    store(folder, 5, 0, ("ann", "bob"))
    settings = {"policies": {"ann": {"credit": OTHER}, "bob": {"credit": RULE}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


@pytest.fixture
def said(capsys, monkeypatch):
    """What a command prints in 80 columns."""

    def call(*words):
        monkeypatch.setenv("COLUMNS", "80")
        capsys.readouterr()
        assert main(["credit", *map(str, words)]) == 0
        return capsys.readouterr().out

    return call


def refused(capsys, *words):
    capsys.readouterr()
    assert main(["credit", *map(str, words)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


# -- list -----------------------------------------------------------------------------------------


def test_the_list_fits_a_terminal_and_names_everything(said):
    told = said("list")
    names = {line.split()[0] for line in told.splitlines() if line.strip()}
    assert {*config.choices("credit"), *config.choices("loss")} <= names
    assert all(len(line) <= 80 for line in told.splitlines())


def test_the_list_as_json_holds_what_the_cards_say(said):
    listed = {item["name"]: item for item in json.loads(said("list", "--json"))}
    assert set(listed) == {*config.choices("credit"), *config.choices("loss")}
    igpo = listed["igpo"]
    card = config.build(config.node("credit", "igpo")).card
    assert (igpo["title"], igpo["evidence"], igpo["level"]) == ("IGPO", card.evidence, "turn")
    assert igpo["arxiv"] == ["2510.14967"]
    assert igpo["signals"]["gold_before"]["annotator"] == "gold_answers"
    assert (
        igpo["train"] == "credit=igpo +annotator@policies.main.annotators.gold_answers=gold_answers"
    )
    assert igpo["survey"]["tier"] == "proxy"
    assert listed["mars_games"]["variant"] == {"by": ["role", "agent", "game"]}
    assert listed["grpo"]["variant"] == {}
    assert listed["stamp"]["train"] is None, "no part of a run attaches its labels"
    assert listed["gspo"]["kind"] == "loss"
    assert "2507.18071" in listed["gspo"]["arxiv"]
    assert [item["name"] for item in json.loads(said("list", "grpo", "--json"))] == ["grpo"]


def test_every_loss_says_where_it_comes_from(said):
    for item in json.loads(said("list", "--json")):
        if item["kind"] == "loss":
            assert item["source"] and "`" not in item["what"], item["name"]


@pytest.mark.parametrize("name", ["igpo", "coma", "grpo"])
def test_what_is_said_to_train_can_be_composed(name, said):
    (item,) = json.loads(said("list", name, "--json"))
    found = config.compose(item["train"].split())["policies"]["main"]
    assert found["credit"]["_target_"] == item["method"]
    assert {*found.get("annotators", {})} == {
        signal["annotator"] for signal in item["signals"].values()
    }


def test_one_method_is_told_in_full(said):
    told = said("list", "gigpo_step", "gspo")
    for part in ("A = w_E · A_E + w_S · A_S", "credit.episode_weight  0.0", "matched",
                 "arXiv 2505.10978 (code)", "loss.low", "s_i = exp("):  # fmt: skip
        assert part in told


def test_a_page_gets_the_tables_between_its_marks(said, tmp_path):
    from marl_llm.commands.credit_list import BEGIN, END, markdown

    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    said("list", "--page", page)
    first = page.read_text()
    assert first == f"before\n\n{BEGIN}\n\n{markdown()}\n{END}\n\nafter\n"
    said("list", "--page", page)
    assert page.read_text() == first


# -- compare --------------------------------------------------------------------------------------


def test_compare_shows_who_is_alike_and_who_lacks_what(run_dir, said):
    told = said("compare", run_dir)
    assert f"{run_dir}, update 10, policy main" in told
    assert "Only 8 games of 384" in " ".join(told.split())
    assert "No two of them" not in told, "groups are stored whole"
    rows = [line.split() for line in told.splitlines()]
    assert ["as", "trained", "+1.00"] in [row[:3] for row in rows]
    assert "state_values" in told.partition("not applicable")[2]
    assert all(len(line) <= 80 for line in told.splitlines() if "/" not in line)


def test_compare_writes_all_figures_and_a_picture(run_dir, tmp_path, said):
    file, picture = tmp_path / "all.json", tmp_path / "all.png"
    said("compare", run_dir, "--update", 5, "--json", file)
    said("compare", run_dir, "--credit", "mars,rae,rtmc", "--picture", picture)
    found = json.loads(file.read_text())
    assert found["update"] == 5
    result = found["policies"]["main"]
    names = result["names"]
    assert names[:2] == ["as trained", "mars_state, as set"]
    assert {*names, *result["refused"]} - set(names[:2]) == set(config.choices("credit"))
    matrix = np.array(result["correlation"], dtype=float)
    assert np.allclose(matrix, matrix.T, equal_nan=True)
    assert (result["games"], result["largest_group"]) == (8, 4)
    own = np.array(result["shares"], dtype=float).sum(axis=1)
    assert np.allclose(own[np.isfinite(own)], 1.0)
    assert result["refused"]["gae"]["signals"] == ["value"]
    assert imread(picture)[..., :3].std() > 0.05


def test_compare_agrees_with_what_an_estimator_says_itself(run_dir, tmp_path, said):
    file = tmp_path / "two.json"
    said("compare", run_dir, "credit=grpo,mars_state", "--json", file)
    result = json.loads(file.read_text())["policies"]["main"]
    games = read_episodes(run_dir / "episodes" / "update_000010.jsonl")
    batch = from_episodes([game.episode for game in games], "main")
    credit = assign(config.build(config.node("credit", "grpo")), batch).advantage
    at = result["names"].index("grpo")
    assert result["zeros"][at] == np.mean(credit == 0)
    left = np.abs(credit[batch.agent == 0]).sum() / np.abs(credit).sum()
    assert result["shares"][at][0] == pytest.approx(left)


def test_compare_asks_each_policy_about_its_own_turns(duel, tmp_path, said):
    file, picture = tmp_path / "both.json", tmp_path / "both.png"
    words = ("--credit", "mars,rae", "--json", file, "--picture", picture)
    told = said("compare", f"run={duel}", *words)
    assert "policy ann" in told and "policy bob" in told
    found = json.loads(file.read_text())["policies"]
    assert found["ann"]["own"] == "grpo"
    assert found["ann"]["agents"] == ["player_0"] and found["bob"]["agents"] == ["player_1"]
    assert {path.name for path in tmp_path.glob("*.png")} == {"both_ann.png", "both_bob.png"}


def test_rules_that_agree_are_drawn_beside_each_other():
    a, b = [1.0, 0.9, 0.1, 0.0], [0.0, 0.1, 0.9, 1.0]
    kind = np.array([a, b, a, b]) @ np.array([a, b, a, b]).T / (np.dot(a, a))
    order = beside_their_like(kind)
    assert sorted(order) == [0, 1, 2, 3]
    assert {*order[:2]} in ({0, 2}, {1, 3})


# -- explain --------------------------------------------------------------------------------------


def test_explain_tells_a_game_turn_by_turn(run_dir, said):
    told = said("explain", run_dir, 102, "--credit", "rtmc", "gae", "grpo")
    games = read_episodes(run_dir / "episodes" / "update_000010.jsonl")
    (game,) = (each.episode for each in games if each.episode.id == 102)
    assert "episode 102 of update 10" in told
    assert "Credit from 8 of 384 games" in told and "3 of them in the group" in told
    assert told.count("\nturn ") == len(game.turns)
    for turn in game.turns:
        assert f"plays {turn.action}" in told
    assert "gae says nothing: needs value, which state_values would attach" in told
    for name in ("as trained", "mars_state, as set", "rtmc", "grpo"):
        assert told.count(f"  {name}") == len(game.turns) + 2, "turns, and two agents' totals"


def test_the_parts_that_explain_shows_add_up(run_dir, said):
    told = said("explain", run_dir, 3, "credit=grpo")
    sums = [re.findall(r"[+-]\d\S*", line) for line in told.splitlines() if "  grpo" in line]
    assert len(sums) > 4
    for credit, *parts in sums:
        assert float(credit) == pytest.approx(sum(map(float, parts)), abs=0.0021)  # rounded parts


def test_explain_says_what_an_additive_rule_expected_at_the_start(run_dir, said):
    told = " ".join(said("explain", run_dir, 102, "credit=graft_values,grpo").split())
    sums = re.findall(
        r"graft_values (\S+) (?:= \w+ \S+ )?= return (\S+) less (\S+) at its start", told
    )
    assert len(sums) == 2 == told.count("at its start"), "of graft_values, for each of two agents"
    for credit, total, start in sums:
        assert float(credit) == pytest.approx(float(total) - float(start), abs=0.0011)


def test_what_a_model_said_cannot_steer_the_terminal(run_dir, said):
    told = said("explain", run_dir, 0)
    assert "\x1b[2J" not in told and "[bold]·[2J" in told


def test_turns_of_others_get_no_credit_but_are_told(duel, said):
    told = said("explain", duel, 0)
    assert "no credit" not in told, "both policies have a rule"
    assert "mars_state, as set" in told and "grpo" in told


def test_a_rule_whose_turns_sum_to_return_minus_baseline_is_told_apart(run_dir):
    games = read_episodes(run_dir / "episodes" / "update_000010.jsonl")
    batch = from_episodes([game.episode for game in games], "main")
    assert adds_up(batch.reward, batch), "what each turn was paid sums to the return, b = 0"
    graft = config.build(config.node("credit", "graft_values"))
    assert adds_up(assign(graft, batch).advantage, batch), "differences of values telescope"
    broadcast = config.build(config.node("credit", "dr_grpo"))
    assert not adds_up(assign(broadcast, batch).advantage, batch)
    assert not adds_up(0 * batch.reward, batch), "silence explains no return"
    even = replace(batch, reward=0 * batch.reward)
    assert not adds_up(even.reward, even), "equal returns cannot tell"


# -- choose ---------------------------------------------------------------------------------------

ALL_NO = [f"--{key}=no" for key in credit_choose.QUESTIONS]


def test_choose_is_scripted(said, monkeypatch):
    monkeypatch.setattr(credit_choose, "SHIPPED", Path("/nowhere"))
    told = said("choose", *ALL_NO)
    assert "gtpo_turn" in told and "marl-llm credit bench --json" in told
    assert "marl-llm train experiment=NAME credit=gtpo_turn" in told


def test_choose_asks_for_what_was_not_said_and_again_for_what_it_does_not_understand(
    said, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO("maybe\nyes\n1.5\n0.7\n"))
    monkeypatch.setattr(credit_choose, "SHIPPED", Path("/nowhere"))
    told = said(
        "choose", "--json", *(word for word in ALL_NO if "gold" not in word and "judge" not in word)
    )
    first, again, *_ = told.splitlines()
    assert first.endswith("probe them? maybe") and again == "  gold is yes or no, got 'maybe'"
    assert told.count("probe them? yes\n") == told.count("no judge)? 0.7\n") == 1
    assert "got '1.5'" in told
    answer = json.loads(told[told.index("{") :])
    assert answer["situation"] == {
        "restorable": False, "repeating": False, "gold": True, "judge": 0.7, "agents": False,
        "turnover": False,
    }  # fmt: skip
    assert answer["advice"][0]["name"] == "trace_delta"


def test_choose_shows_measured_figures(said, tmp_path, capsys):
    file = tmp_path / "bench.json"
    words = ["credit", "bench", "--json", str(file), "groups=6", "size=4", "truths=and,unique"]
    assert main([*words, "estimators=graft_values,rtmc,grpo,triage"]) == 0
    answers = ["--restorable=no", "--repeating=yes", "--gold=no", "--judge=0.9", "--agents=no"]
    told = said("choose", *answers, "--turnover=no", "--bench", file)
    assert "pairs" in told and "mean over and." in told.replace("\n", " ")
    assert "judgements per episode" in " ".join(told.split())
    assert "right 85% of the time, yours 90%" in told
    answer = json.loads(said("choose", *answers, "--turnover=no", "--bench", file, "--json"))
    pairs = [each["figures"]["measures"]["pairs"] for each in answer["advice"] if each["figures"]]
    assert pairs[:-1] == sorted(pairs[:-1], reverse=True)


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("lst", "unknown word 'lst'; did you mean 'list'?"),
        ("list grppo", "unknown name 'grppo'; did you mean 'grpo'?"),
        ("list --jsn", "did you mean '--json'?"),
        ("list --page README", "No such file"),
        ("compare", "which run? give its folder"),
        ("compare nowhere", "'nowhere' is no run folder: there is no such folder"),
        ("compare .", "'.' is no run folder: it has no config.yaml"),
        ("compare RUN more", "one word too many: 'more'"),
        ("compare RUN --update 7", "kept no games of update 7; it did of 5, 10"),
        ("compare RUN --update x", "update must be a whole number"),
        ("compare RUN --credit grp", "unknown credit 'grp'; did you mean 'grpo'?"),
        ("compare RUN --json /no/such/file", "there is no folder for json=/no/such/file"),
        ("compare RUN --pictur x", "did you mean '--picture'?"),
        ("explain RUN", "which episode? give its number"),
        ("explain RUN x", "an episode is a whole number, got 'x'"),
        ("explain RUN " + "9" * 5000, "an episode is a whole number"),
        ("explain RUN 60", "kept no episode 60; the nearest is 100, of update 10"),
        ("explain RUN 3 --update 10", "kept no episode 3; the nearest is 100, of update 10"),
        ("explain RUN 3 grpo", "one word too many: 'grpo'; rules follow --credit"),
        ("explain RUN 3 --credit rlo", "unknown credit 'rlo'; did you mean 'rloo'?"),
        ("choose --gold=perhaps", "gold is yes or no, got 'perhaps'"),
        ("choose --judge=2", "judge is no, or the share of turns"),
        ("choose --bench nowhere.json", "No such file or directory: nowhere.json"),
        ("choose --glod=yes", "did you mean '--gold'?"),
    ],
)
def test_one_line_with_the_way_out(words, hint, run_dir, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hint in refused(capsys, *words.replace("RUN", str(run_dir)).split())


@pytest.mark.parametrize("stdin", [io.StringIO(""), None], ids=["empty", "closed"])
def test_choose_without_anybody_to_answer(stdin, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", stdin)
    said = refused(capsys, "choose", "--gold=no", "--judge=no", "--agents=no")
    assert said.endswith("nobody answers; give --restorable, --repeating and --turnover")
    assert refused(capsys, "choose", *ALL_NO[1:]).endswith("nobody answers; give --restorable")


def test_choose_names_what_is_still_open_when_the_answers_end(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n" * 3))
    assert refused(capsys, "choose").endswith(
        "nobody answers; give --judge, --agents and --turnover"
    )


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"policies": {"main": {"credit": None}}}, "makes no estimator: None"),
        ({"policies": {"main": {"credit": {"_target_": "their.Rule"}}}}, "packages=[their]"),
        ({"policies": {}}, "no policy of the run moved"),
        ({}, "no policy of the run moved"),
    ],
)
def test_a_run_whose_configuration_says_no_rule(settings, hint, run_dir, tmp_path, capsys):
    copy = tmp_path / "copy"
    (copy / "episodes").mkdir(parents=True)
    name = "update_000005.jsonl"
    (copy / "episodes" / name).write_bytes((run_dir / "episodes" / name).read_bytes())
    (copy / "config.yaml").write_text(yaml.safe_dump(settings))
    assert hint in refused(capsys, "compare", copy)


def test_a_run_without_games_and_a_damaged_file_are_named(run_dir, tmp_path, capsys):
    (tmp_path / "config.yaml").write_bytes((run_dir / "config.yaml").read_bytes())
    assert "holds no games yet" in refused(capsys, "compare", tmp_path)
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "update_000005.jsonl").write_bytes(b"\xff\xfe\n")
    assert "update_000005.jsonl line 1 is not an episode" in refused(capsys, "compare", tmp_path)
