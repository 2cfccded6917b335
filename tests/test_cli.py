"""What a user can get wrong: one line on stderr with the way out, exit code 2, no traceback."""

import io
import json
import shutil
import sys

import pytest
import torch
import yaml

from marl_llm import cli
from marl_llm.cli import main
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.run import locked
from marl_llm.serve.tiny import build_model, build_tokenizer, save

SMALL = (
    "updates=1", "rollout.episodes=8", "policies.main.coldstart.games=40",
    "policies.main.coldstart.fit.steps=10", "evaluation.thoughts=1", "model.layers=1",
    "model.width=32", "run.checkpoint_every=1", "runtime.threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of one update."""
    folder = tmp_path_factory.mktemp("runs") / "kuhn"
    assert main(["train", f"run.dir={folder}", *SMALL]) == 0
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder; the model knows nothing."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    game = KuhnPoker()
    tokenizer = build_tokenizer([game.rules()] * 3, 320)
    save(
        build_model(
            tokenizer, layers=1, width=16, heads=2, kv_heads=1, mlp=16, context=256, seed=0
        ),
        tokenizer,
        folder,
    )
    return folder


def refused(capsys, *words):
    """The one line by which a command was refused."""
    capsys.readouterr()
    assert main(list(words)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("marl-llm: ")
    return lines[0]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("trian", "did you mean 'train'?"),
        ("train kuhn", "expected key=value, got 'kuhn'"),
        ("train experiment=kuhn_selfpaly", "did you mean 'kuhn_selfplay'?"),
        ("train credit=rlo", "unknown credit 'rlo'; did you mean 'rloo'?"),
        ("train loss=gsp", "did you mean 'gspo'?"),
        ("train model=pretrained", "policies.main.model.name has no default and must be given"),
        ("train game=leduc", "write game@games.leduc=leduc"),
        ("train game@games.kuhn=kun", "unknown game 'kun'; did you mean 'kuhn'?"),
        ("train updats=3", "the run has no setting 'updats'; did you mean 'updates'?"),
        ("train rollout.episods=3", "did you mean 'episodes'?"),
        ("train learner.lrr=1", "policies.main.learner has no setting 'lrr'; did you mean 'lr'?"),
        ("train games.kuhn.playrs=3", "games.kuhn has no setting 'playrs'; did you mean"),
        ("train updates=abc", "updates must be a whole number of at least 0, got 'abc'"),
        ("train updates=-1", "updates must be a whole number of at least 0, got -1"),
        ("train seed=-1", "seed must be a whole number of at least 0, got -1"),
        ("train seed=1.5", "seed must be a whole number of at least 0, got 1.5"),
        ("train learner.lr=fast", "policies.main.learner.lr must be a number, got 'fast'"),
        ("train rollout=3", "rollout has settings of its own"),
        ("train policies.main=3", "policies.main is a mapping"),
        ("train runtime=rya", "runtime.name must be one of local, ray, got 'rya'"),
        ("train evaluation.nash_conv=[kun]", "did you mean 'kuhn'?"),
        ("train rollout.lineups=[[sefl]]", "did you mean 'self'?"),
        ("train rollout.lineups=[[]]", "by role; got [[]]"),
        ("train policies.main.trained=false", "no policy is trained"),
        ("train evaluation.success=1", "at least 2 episodes"),
        ("train rollout.lineups=[]", "must hold at least one line-up"),
        ("train rollout.episodes=0", "rollout.episodes must be at least 1, got 0"),
        ("train rollout.episodes=8 rollout.group_size=3", "multiple of rollout.group_size"),
        ("train rollout.turn_seconds=-1", "rollout.turn_seconds must be above 0, got -1"),
        ("train rollout.episode_seconds=0", "rollout.episode_seconds must be above 0, got 0"),
        ("train rollout.shaping.valid=much", "rollout.shaping.valid must be a number, got 'much'"),
        ("train rollout.shaping.vald=0.1", "rollout.shaping has no setting 'vald'; did you mean"),
        ("train rollout.stall_seconds=0", "rollout.stall_seconds must be above 0, got 0"),
        ("train run.episodes=-1", "run.episodes must be at least 0, got -1"),
        ("train run.dir=", "run.dir is empty"),
        ("train runtime.threads=0", "runtime.threads must be at least 1, got 0"),
        ("train runtime.max_staleness=-1", "runtime.max_staleness must be at least 0, got -1"),
        ("train policies.main.coldstart.games=0", "coldstart.games must be at least 1, got 0"),
        ("train policies.main.coldstart.fit.lr=nan", "coldstart.fit.lr must be a number, got nan"),
        ("train learner.lr=inf", "policies.main.learner.lr must be a number, got inf"),
        ("train learner.lr=1e308", "lr must be in [0, 1]"),
        ("train model.context=0", "context of a tiny model must be at least 1, got 0"),
        ("train model.layers=0", "layers of a tiny model must be at least 1, got 0"),
        ("train updates=" + "9" * 400, "updates must be at most 1,000,000,000"),
        ("train seats.self.role.sampling.stop=['']", "a stop text is empty"),
        ("train packages=throws", "packages must be a list of packages"),
        ("train packages=[their.throws]", "packages must be a list of packages"),
        ("train +games.mine._target_=their.Game", "name 'their' too if you trust it (in a run: "),
        ("train +games.mine._target_=nodots", "'nodots' is no dotted name"),
        ("train +games.mine._target_=3", "games.mine._target_ must be text, got 3"),
        ("train +games.mine._target_=marl_llm.games.kuhn.np", "has no 'np' to call"),
        ("train +games.mine._target_=marl_llm.credit.rloo.RLOO", "games.mine makes a RLOO, which"),
        ("train credit=gae", "add +annotator@policies.main.annotators.state_values=state_values"),
        ("train seats.self.role.memory=dialogue", "NashConv of role 'player' needs memory"),
        ("train +game@games.h=hanabi_mini evaluation.nash_conv=[h]", "no information states"),
        ("train policies.main.coldstart=null", "policies.main.coldstart is missing"),
        ("train resume=nowhere", "'nowhere' is no run folder: there is no such folder"),
        ("train resume=nowhere seed=3", "unknown key 'seed'; known: resume, updates"),
        ("eval", "give run=RUNDIR or model=PATH_OR_NAME"),
        ("eval run=a model=b", "one of them"),
        ("eval model=a", "needs a game, e.g. game=kuhn"),
        ("eval model= game=kuhn", "eval: model is empty"),
        ("eval model=a game=kuhn json=/no/such/file", "no folder for json=/no/such/file"),
        ("eval run=nowhere", "'nowhere' is no run folder"),
        ("eval model=./nowhere game=kuhn", "there is no model at ./nowhere; is the path right?"),
        ("eval model=a game=kuhn role=tinny", "unknown role 'tinny'; did you mean 'tiny'?"),
        ("eval model=a game=kuhn update=3", "update does not apply here; they go with run="),
        ("eval model=a game=kuhn pairs=0", "pairs must be a whole number of at least 1, got '0'"),
        ("eval model=a game=kuhn pair=3", "unknown key 'pair'; did you mean 'pairs'?"),
        ("eval model=a game=kuhn seed=-1", "seed must be a whole number of at least 0"),
        ("eval model=a game=kuhn --jsn", "unknown option '--jsn'; did you mean '--json'?"),
        ("play", "which game? give game=NAME"),
        ("play game=kun", "did you mean 'kuhn'?"),
        ("play game=kuhn player=nahs", "unknown player 'nahs'; did you mean 'nash'?"),
        ("play game=kuhn seat=2", "kuhn has seats 0 to 1, got seat=2"),
        ("play game=kuhn player=nash model=x", "give one of run=, model= and player="),
        ("report", "which run? give run=RUNDIR"),
        ("report run=nowhere", "'nowhere' is no run folder"),
        ("games chek", "did you mean 'check'?"),
        ("games check kuhm", "unknown game 'kuhm'; did you mean 'kuhn'?"),
        ("games check nowhere.py:Nim", "no file 'nowhere.py'"),
        ("games check no_such_package.nim:Nim", "cannot import 'no_such_package.nim'"),
        ("games check json:loads", "needs the settings s"),
        ("experiments kuhn", "unknown word 'kuhn'; it takes none"),
    ],
)  # fmt: skip
def test_one_line_with_the_way_out(words, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hint in refused(capsys, *words.split())
    assert not list(tmp_path.iterdir()), "a run that is refused leaves no folder"


def test_a_folder_that_holds_a_run_is_not_overwritten(run_dir, capsys):
    line = refused(capsys, "train", f"run.dir={run_dir}", *SMALL)
    assert "holds a run already" in line
    assert f"resume={run_dir}" in line


def test_a_folder_whose_run_never_began_can_be_used_again(run_dir, tmp_path, capsys):
    again = tmp_path / "run"
    again.mkdir()
    shutil.copy(run_dir / "config.yaml", again)  # refused or killed before its models were made
    assert main(["train", f"run.dir={again}", *SMALL]) == 0


NOT_TEXT = b"\xff\xfe\x00"


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("config.yaml", "train resume=RUN", "cannot be read as a run's configuration"),
        ("config.yaml", "eval run=RUN", "cannot be read as a run's configuration"),
        ("config.yaml", "games check RUN/config.yaml", "config.yaml is no valid YAML"),
        ("episodes/update_000001.jsonl", "report run=RUN", "update_000001.jsonl line 1 is not"),
        ("metrics.jsonl", "report run=RUN", "metrics.jsonl line 1 is not a line of metrics"),
        ("policies/update_000001.json", "report run=RUN", "is no file of policy tables"),
        ("models/main/config.json", "eval run=RUN update=0", "models/main"),
        ("models/main/config.json", "train resume=RUN updates=2", "models/main"),
    ],
)
def test_a_file_of_a_run_that_holds_no_text_is_named(run_dir, tmp_path, name, words, hint, capsys):
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    (copy / name).write_bytes(NOT_TEXT + b"\n")
    assert hint in refused(capsys, *words.replace("RUN", str(copy)).split())


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "x", ""])
def test_a_number_that_is_none(run_dir, text, capsys):
    for words in (
        ["train", f"resume={run_dir}", f"updates={text}"],
        ["eval", f"run={run_dir}", f"pairs={text}"],
        ["eval", f"run={run_dir}", "pairs=1", f"thoughts={text}"],
        ["play", "game=kuhn", f"seat={text}"],
    ):
        refused(capsys, *words)


def test_a_run_folder_in_use(run_dir, capsys):
    with locked(run_dir):
        assert "is in use by process" in refused(capsys, "train", f"resume={run_dir}")


def test_an_update_without_a_checkpoint(run_dir, capsys):
    line = refused(capsys, "eval", f"run={run_dir}", "update=7")
    assert "has no update_000007" in line
    assert "did you mean 'update_000001'?" in line


def test_an_altered_checkpoint(run_dir, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    weights = copy / "checkpoints/update_000001/policies/main/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "weights.safetensors is cut short" in refused(capsys, "eval", f"run={copy}")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("panel=minimx", "unknown opponent 'minimx'; did you mean 'minimax'?"),
        ("panel=minimax", "player 'minimax' needs perfect information"),
        ("panel=coldstart", "unknown opponent 'coldstart'"),
        ("thoughts=deep", "thoughts is a number of samples, fixed or none, got 'deep'"),
        ("thoughts=0", "thoughts.count must be at least 1, got 0"),
        ("device=tpu", "unknown device 'tpu'"),
        ("dtype=float64", "unknown dtype 'float64'"),
    ],
)
def test_a_model_evaluated_wrongly(model, word, hint, capsys):
    words = ["eval", f"model={model}", "game=kuhn", "role=tiny", "pairs=1", word]
    assert hint in refused(capsys, *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(model, run_dir, capsys):
    words = ["eval", f"model={model}", "game=kuhn", "role=tiny", "device=cuda"]
    assert "sees 0 GPUs; use device=cpu" in refused(capsys, *words)
    assert "sees 0 GPUs" in refused(capsys, "eval", f"run={run_dir}", "device=cuda")


def test_a_chat_template_without_a_generation_prompt(model, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    template = broken / "chat_template.jinja"
    head, _, _ = template.read_text().partition("{% if add_generation_prompt %}")
    template.write_text(head)
    line = refused(capsys, "eval", f"model={broken}", "game=kuhn", "role=tiny")
    assert "has no generation prompt" in line


def test_memory_that_runs_out_is_one_line():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert cli._out_of_memory(caught.value)
    assert cli._out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert cli._out_of_memory(MemoryError())
    assert not cli._out_of_memory(RuntimeError("a fault of ours keeps its traceback"))


def test_help_and_lists(capsys):
    assert main([]) == 0
    assert main(["train", "--help"]) == 0
    assert main(["experiments"]) == 0
    told = capsys.readouterr().out
    assert "marl-llm COMMAND" in told
    assert "resume=RUNDIR" in told
    assert "kuhn_selfplay          One tiny model" in told


def test_every_command_helps(capsys):
    for command in cli.COMMANDS:
        assert main([command, "--help"]) == 0
        assert f"marl-llm {command}" in capsys.readouterr().out


def test_games_are_listed_and_checked(capsys):
    assert main(["games", "--json"]) == 0
    listed = {game["name"]: game for game in json.loads(capsys.readouterr().out)}
    assert listed["kuhn"]["solver"] == "exact NashConv"
    assert main(["games", "check", "kuhn", "episodes=20", "--json"]) == 0
    assert {f["status"] for f in json.loads(capsys.readouterr().out)["kuhn"]} <= {
        "passed",
        "skipped",
    }


def test_a_game_of_ones_own_that_breaks_the_rules(tmp_path, capsys):
    own = tmp_path / "greedy.py"
    own.write_text(
        "from marl_llm.games.kuhn import KuhnPoker\n"
        "class Greedy(KuhnPoker):\n"
        "    def earnings(self):\n"
        "        return tuple(abs(pay) for pay in super().earnings())\n"
    )
    assert main(["games", "check", f"{own}:Greedy", "episodes=20"]) == 1
    assert "failed" in capsys.readouterr().out


def test_a_run_is_evaluated(run_dir, tmp_path, capsys):
    file = tmp_path / "result.json"
    words = [f"run={run_dir}", "pairs=2", "thoughts=fixed", f"json={file}", "--json"]
    assert main(["eval", *words, "panel=random,coldstart,update_000001,self"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(file.read_text())
    assert shown["version"] == 1
    kuhn = shown["games"]["kuhn"]
    assert kuhn["nash_conv"]["thoughts"] == "fixed: the observation in brief"
    assert 0 <= kuhn["nash_conv"]["nash_conv"] <= 4
    opponents = [match["opponent"] for match in kuhn["matches"]]
    assert opponents == ["random", "coldstart", "update_000001", "self"]
    # two deals from both seats; with itself a deal is one game, seen from both
    assert [match["pooled"]["games"] for match in kuhn["matches"]] == [4, 4, 4, 4]


def test_an_evaluation_repeats(run_dir, capsys):
    words = ["eval", f"run={run_dir}", "pairs=3", "thoughts=1", "seed=5", "--json"]
    assert main(words) == main(words) == 0
    first, second = capsys.readouterr().out.split("}\n{")
    assert first + "}" == "{" + second.rstrip("\n")


def test_the_report_is_written_again(run_dir, capsys):
    (run_dir / "report.html").unlink()
    assert main(["report", f"run={run_dir}"]) == 0
    assert (run_dir / "report.html").exists()
    assert "report:" in capsys.readouterr().out


def test_a_person_plays(run_dir, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("nonsense\nbet\n1\n"))
    assert main(["play", "game=kuhn", "player=random", "seed=0"]) == 0
    told = capsys.readouterr().out
    assert "Not an action here" in told
    assert "you: bet" in told
    assert "The end: you " in told
    monkeypatch.setattr("sys.stdin", io.StringIO("bet\n1\n"))
    assert main(["play", f"run={run_dir}", "seed=0", "seat=1"]) == 0
    assert "update 000001" in capsys.readouterr().out


@pytest.mark.parametrize("plan", [(), ("dry_run=true",)], ids=["run", "plan"])
@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (None, "there is no model at {0}; is the path right? Give the folder that save_pretrained"),
        ((), "{0} is not a model folder: it has no config.json; give the folder that"),
        (("config.json",), "{0} holds a config.json but no weights (*.safetensors); give the"),
    ],
    ids=["nothing", "no model", "no weights"],
)
@pytest.mark.parametrize("setting", ["model.name", "judge.model"])
def test_a_model_that_is_not_there_is_refused_before_anything_is_made(
    plan, content, hint, setting, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "published"
    if content is not None:
        folder.mkdir()
        for name in content:
            (folder / name).write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    words = ["model=pretrained", f"model.name={folder}"]
    if setting == "judge.model":
        words = [f"+policies.main.judge.model={folder}"]
    line = refused(capsys, "train", "role@seats.self.role=player", *words, *plan)
    assert f"policies.main.{setting}: {hint.format(folder)}" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_the_plan_believes_the_name_of_a_model(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    words = ["model=pretrained", "model.name=nobody/nothing-at-all", "dry_run=true"]
    assert main(["train", "role@seats.self.role=player", *words]) == 0
    assert "its size is not known here" in " ".join(capsys.readouterr().out.split())


def test_the_plan_is_only_a_plan(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", f"run.dir={folder}", "dry_run=true"]) == 0
    assert "parameters by its settings" in capsys.readouterr().out
    assert not folder.exists()


def test_what_was_typed_is_what_is_kept(run_dir):
    kept = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert kept["updates"] == 1
    assert kept["rollout"]["episodes"] == 8


THROWS = """
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from marl_llm.games.pettingzoo_game import DiscreteCodec, PettingZooGame

class Throws(ParallelEnv):
    metadata = {"name": "throws"}
    possible_agents = ["left", "right"]
    def observation_space(self, agent):
        return spaces.Box(0, 1, (1,), np.int64)
    def action_space(self, agent):
        return spaces.Discrete(3)
    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, np.zeros(1)), {"left": {}, "right": {}}
    def step(self, actions):
        won = (0.0, 1.0, -1.0)[(actions["left"] - actions["right"]) % 3]
        self.agents = []
        seen = dict.fromkeys(self.possible_agents, np.ones(1))
        over, cut = (dict.fromkeys(self.possible_agents, flag) for flag in (True, False))
        return seen, {"left": won, "right": -won}, over, cut, {"left": {}, "right": {}}

def throws():
    codec = DiscreteCodec("Rock beats scissors.", ["rock", "paper", "scissors"])
    return PettingZooGame(env=Throws(), codec=codec, name="throws", max_turns=2)
"""


@pytest.mark.slow
def test_a_game_of_ones_own_is_trained(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_throws.py").write_text(THROWS)
    monkeypatch.chdir(tmp_path)
    words = [
        "train", *SMALL, "~game@games.kuhn", "+games.throws._target_=own_throws.throws",
        "player@policies.main.coldstart.player=random", "evaluation.nash_conv=[]",
        "+player@evaluation.panel.random=random", "evaluation.pairs=2", "run.dir=run",
    ]  # fmt: skip
    assert "packages=[own_throws]" in refused(capsys, *words)
    assert main([*words, "packages=[own_throws]"]) == 0
    assert main(["eval", "run=run", "pairs=1"]) == 0
    assert main(["train", "resume=run", "updates=2"]) == 0
    del sys.modules["own_throws"]
    monkeypatch.chdir(tmp_path.parent)
    assert "cannot import 'own_throws'" in refused(capsys, "train", f"resume={tmp_path / 'run'}")
