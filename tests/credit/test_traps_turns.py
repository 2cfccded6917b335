"""Faults of public multi-turn and multi-agent code that no rule here may have, one test each.

A test is named after where the fault was met: repository and issue, or the paper's public code.
Faults of one method alone stand in its own tests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marl_llm.credit import assign
from marl_llm.credit.agentprm import AgentPRMTemporal
from marl_llm.credit.at_grpo import ATGRPO
from marl_llm.credit.coma import COMA
from marl_llm.credit.critic_search_reading import CriticSearchReading
from marl_llm.credit.dr_mas import DrMAS
from marl_llm.credit.gae import GAE
from marl_llm.credit.gigpo import GiGPO
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.gtpo_turn import GTPOTurn
from marl_llm.credit.hae import HAE
from marl_llm.credit.happo import HAPPO
from marl_llm.credit.hcapo import HCAPO
from marl_llm.credit.hgpo import HGPO
from marl_llm.credit.ica import ICA
from marl_llm.credit.igpo import IGPO
from marl_llm.credit.lare_reading import LaReReading
from marl_llm.credit.lca_reading import LCAReading
from marl_llm.credit.leave_one_out import LeaveOneOut
from marl_llm.credit.m_grpo import MGRPO
from marl_llm.credit.ma_poca import MAPOCA
from marl_llm.credit.magrpo import MAGRPO
from marl_llm.credit.mappo import MAPPO
from marl_llm.credit.mars import Mars
from marl_llm.credit.mt_grpo import MTGRPO
from marl_llm.credit.pica import PiCA, PiCAShipped
from marl_llm.credit.rebel import ReBel
from marl_llm.credit.shapley import Shapley
from marl_llm.credit.siop import SIOP
from marl_llm.credit.stamp import Stamp
from marl_llm.credit.toca_gae_reading import TOCAGAEReading
from marl_llm.credit.toca_reading import TOCALooReading, TOCASharedReading, TOCAStratifiedReading
from marl_llm.credit.trace_logratio import TraceLogRatio
from marl_llm.credit.turn_ablation import TurnAblation
from marl_llm.errors import ConfigError, EpisodeError

OUTCOME = [  # compare whole returns
    MTGRPO(), ReBel(), ICA(), IGPO(), TraceLogRatio(), HCAPO(success=0.0),
    TurnAblation(slope=0.5), Stamp(), CriticSearchReading(outcome_share=0.5),
    DrMAS(unit="agent"), GiGPO(unit="agent"), MGRPO(),
    TOCASharedReading(), TOCAStratifiedReading(kappa=2.0), TOCALooReading(),
]  # fmt: skip
TO_GO = [  # compare returns from a turn on
    GTPOTurn(gamma=1.0), GTPOTurn(gamma=1.0, by=("group", "agent", "agent_turn")),
    GiGPO(gamma=1.0), HGPO(gamma=1.0), Mars(), MAGRPO(), ATGRPO(of="to_go"),
]  # fmt: skip
CRITICS = [  # start from a learned value
    GAE(), MAPPO(normalise=False), HAPPO(normalise=False), MAPOCA(), AgentPRMTemporal(), PiCA(),
    PiCAShipped(), TOCAGAEReading(),
]  # fmt: skip
WITH_EQUAL_CELLS = [*OUTCOME, *TO_GO, *CRITICS, SIOP(), ATGRPO(), GTPOTurn(), LCAReading()]


def kind(estimator):
    return type(estimator).__name__


def each(*estimators):
    return pytest.mark.parametrize("estimator", estimators, ids=kind)


def drawn(random_batch, seed=0, **options):
    return random_batch(np.random.default_rng(seed), **options)


# -- returns ---------------------------------------------------------------------------------------


@each(*TO_GO)
def test_verl_7244_stopping_is_not_preferred(make_batch, estimator):
    """Every turn pays .3, and half of the episodes go on: that is worth .3, and must look so."""
    batch = make_batch([0.3] * 6, episode=[0, 0, 1, 2, 2, 3])
    first = estimator.estimate(batch).advantage[[0, 2, 3, 5]]
    assert first[0] == first[2] > 0 > first[1] == first[3]


@each(*WITH_EQUAL_CELLS)
def test_verl_7278_and_2337_the_words_of_others_are_no_steps(random_batch, estimator):
    """No return starts anew, decays or bootstraps at a turn of somebody else."""
    batch = drawn(random_batch)
    rows = np.flatnonzero(batch.agent == 0)
    alone = estimator.estimate(batch.take(rows)).advantage
    np.testing.assert_allclose(estimator.estimate(batch).advantage[rows], alone, atol=1e-12)


@each(*WITH_EQUAL_CELLS)
def test_miles_1827_nothing_decays_per_token(random_batch, estimator):
    """A turn is one step, however many tokens it has."""
    batch = drawn(random_batch)
    lengths = 7 * batch.lengths
    longer = replace(
        batch,
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        logprobs=np.full(lengths.sum(), -0.5),
        signals={k: v for k, v in batch.signals.items() if len(v) == len(batch)},
    )
    np.testing.assert_allclose(
        estimator.estimate(longer).advantage, estimator.estimate(batch).advantage, atol=1e-12
    )


@each(*OUTCOME, *TO_GO, ATGRPO(), GTPOTurn(), SIOP(), LCAReading())
def test_verl_6392_a_reward_that_meets_no_token_is_not_lost(make_batch, estimator):
    """The forfeit came with an empty reply: who brought it about has spoken before."""
    ones, zeros = [1.0] * 4, [0.0] * 4
    signals = {
        "belief_key": zeros, "belief_reward": zeros, "gold_before": zeros, "gold_after": zeros,
        "hindsight_logprob": zeros, "ablated_return": zeros, "judge_credit": zeros,
        "judge_good": zeros, "event": zeros, "event_exogenous": ones, "answer_before": ones,
        "answer_after": ones, "answer_share": [0.2, 0.2, 0.8, 0.8], "potential": [1, 0, 1, 1],
        "potential_next": [0, 0, 1, 1],
    }  # fmt: skip
    batch = make_batch(
        [0, -1, 0, 0], episode=[0, 0, 1, 1], lengths=[1, 0, 1, 1], signals=signals
    ).with_signals({"evidence_unit": np.array([-1] * 4), "event": np.zeros(4, dtype=np.int64)})
    got = estimator.estimate(batch).advantage
    assert got[0] < got[2]
    assert got[1] == 0


@each(*TO_GO, MTGRPO(), GAE())
def test_skyrl_201_every_turns_reward_counts_and_every_turn_is_trained(make_batch, estimator):
    """Wherever a reward falls, its own turn is credited, and no turn has weight 0."""
    for k in range(3):
        batch = make_batch(np.eye(6)[k], episode=[0, 0, 0, 1, 1, 1], signals={"value": [0.0] * 6})
        credit = estimator.estimate(batch)
        assert credit.advantage[k] > 0
        assert credit.weight.tolist() == [1] * 6


@each(*TO_GO, MTGRPO(), ATGRPO(), GTPOTurn())
def test_ragen_128_and_trinity_560_turns_of_one_episode_differ(make_batch, estimator):
    """One total, earned at different turns: only a rule for whole responses may not see it."""
    early, late = [1.0, 0, 0, 0], [0, 1.0, 0, 0]
    batches = [make_batch(reward, episode=[0, 0, 1, 1]) for reward in (early, late)]
    whole, turns = ([e.estimate(b).advantage for b in batches] for e in (GRPO(), estimator))
    np.testing.assert_array_equal(*whole)
    assert not np.allclose(*turns)


@each(*OUTCOME)
def test_skyrl_1492_no_step_but_the_last_is_left_without_credit(random_batch, estimator):
    batch = drawn(random_batch, silent=0.0)
    assert np.all(estimator.estimate(batch).advantage != 0)


# -- who is counted --------------------------------------------------------------------------------


@each(*OUTCOME)
def test_agent_lightning_445_a_long_episode_weighs_no_more(make_batch, estimator):
    """An episode of four turns with return 1, one of a single turn with 0: ± the same.

    Signals say nothing, so that only the comparison of returns is left.
    """
    n, zeros = 5, [0.0] * 5
    names = ("belief_reward", "gold_before", "gold_after", "judge_credit", "judge_good")
    signals = dict.fromkeys(names, zeros) | {
        "hindsight_logprob": zeros, "ablated_return": zeros, "event_exogenous": [1.0] * n,
    }  # fmt: skip
    keys = {
        name: np.arange(n) if name == "belief_key" else np.full(n, fill)
        for name, fill in (("belief_key", 0), ("evidence_unit", -1), ("event", 0))
    }
    batch = make_batch(
        [0, 0, 0, 1, 0], episode=[0, 0, 0, 0, 1], state_key=range(n), signals=signals
    ).with_signals(keys)
    credit = estimator.estimate(batch)
    part = credit.components.get("outcome", credit.components.get("episode", credit.advantage))
    np.testing.assert_allclose(part[3], -part[4])


@each(*OUTCOME, *TO_GO, ATGRPO(), GTPOTurn(), SIOP())
def test_agent_lightning_489_unlike_prompts_are_no_group(random_batch, estimator):
    """A planner's and a solver's turns under one query are not each other's baseline."""
    with pytest.raises(ConfigError, match="pools roles 'alice' and 'bob'"):
        replace(estimator, by=("group",)).estimate(drawn(random_batch))


@each(*WITH_EQUAL_CELLS)
def test_verl_6452_rejected_rows_move_no_baseline(random_batch, estimator):
    batch = drawn(random_batch)
    rejected = np.isin(batch.episode, [0, 5])
    kept = np.flatnonzero(~rejected)
    expected = estimator.estimate(batch.take(kept)).advantage
    got = assign(
        estimator,
        replace(batch, reward=np.where(rejected, 1e6, batch.reward)).with_signals(
            {"unscored": rejected.astype(float)}
        ),
    )
    np.testing.assert_allclose(got.advantage[kept], expected, atol=1e-12)
    assert not got.weight[rejected].any()


@each(*WITH_EQUAL_CELLS)
def test_openrlhf_1239_and_rllm_234_rows_without_tokens_move_no_baseline(
    random_batch, add_copies, estimator
):
    """Copies of an episode with wild rewards, in which nothing was sampled."""
    batch = drawn(random_batch)
    n = len(batch)
    more = add_copies(batch, np.flatnonzero(batch.episode == 1))
    silent = np.where(np.arange(len(more)) < n, more.lengths, 0)
    padded = replace(
        more,
        reward=np.where(np.arange(len(more)) < n, more.reward, 1e6),
        offsets=np.concatenate(([0], np.cumsum(silent))),
        logprobs=batch.logprobs,
        signals={k: v for k, v in more.signals.items() if len(v) == len(more)},
    )
    expected = estimator.estimate(batch).advantage
    np.testing.assert_allclose(estimator.estimate(padded).advantage[:n], expected, atol=1e-12)


@each(DrMAS(), MGRPO(), GiGPO(), ReBel(), GTPOTurn(), MTGRPO())
def test_verl_descendants_a_group_of_one_does_not_get_its_raw_return(make_batch, estimator):
    """A replacement that one rollout only has met: its return has no scale and no baseline."""
    batch = make_batch(
        [1, 0, 50], episode=[0, 1, 1], agent=[0, 0, 1], role=[0, 0, 0],
        signals={"belief_key": [0, 0, 1], "belief_reward": [0.0] * 3},
    ).with_signals({"belief_key": np.array([0, 0, 1])})  # fmt: skip
    if isinstance(estimator, MGRPO):
        estimator = replace(estimator, by=("group", "agent", "depth"))
    credit = estimator.estimate(batch)
    assert credit.advantage[2] == 0
    with pytest.raises(EpisodeError, match="1 turns have nobody to be compared with"):
        replace(estimator, singleton="error").estimate(batch)


def test_trinity_551_where_states_never_repeat_the_step_term_is_silent_and_says_so(random_batch):
    batch = drawn(random_batch, silent=0.0)
    batch = replace(batch, state_key=np.arange(len(batch)))
    for estimator in (GiGPO(), HGPO(base=True), ReBel()):
        unlike = batch.with_signals({"belief_key": batch.state_key})
        credit = estimator.estimate(unlike)
        assert credit.stats["singleton_share"] == 1
        assert credit.advantage.any(), "the comparison of episodes is left"
    assert not HGPO().estimate(batch).advantage.any()


def test_slime_487_ragged_calls_do_not_make_one_group_of_all(random_calls):
    """However many calls each episode makes, groups are what the keys say."""
    batch = random_calls(np.random.default_rng(0), groups=3)
    mine = np.flatnonzero(batch.group == 1)
    alone = MGRPO().estimate(batch.take(mine)).advantage
    np.testing.assert_allclose(MGRPO().estimate(batch).advantage[mine], alone, atol=1e-12)


# -- where an episode ends -------------------------------------------------------------------------


@each(*CRITICS, HAE(whiten=False))
def test_openrlhf_1327_and_torchrl_4209_cut_short_is_not_ended(random_batch, estimator):
    """Cut short, what was still to come counts, and nobody else's value; ended, nothing does."""
    batch = drawn(random_batch)
    cut, plain = batch.truncated, estimator.estimate(batch).advantage
    chosen = np.repeat(cut, batch.lengths) if len(plain) > len(batch) else cut

    def moved(rows):
        more = {"value_next": batch.signals["value_next"] + 5.0 * rows}
        return estimator.estimate(batch.with_signals(more)).advantage - plain

    assert np.any(moved(cut)[chosen])
    assert not moved(~cut).any()
    other = batch.episode == batch.episode[np.flatnonzero(~cut)[-1]]
    loud = {n: batch.signals[n] + 9.0 * other for n in ("value", "value_high", "value_others")}
    change = estimator.estimate(batch.with_signals(loud)).advantage - plain
    mine = np.repeat(~other, batch.lengths) if len(plain) > len(batch) else ~other
    assert not change[mine].any()


@each(GAE(lam=1.0), MAPPO(normalise=False, gamma=1.0, lam=1.0), MAPOCA(gamma=1.0, lam=1.0),
      TOCAGAEReading(lam=1.0))  # fmt: skip
def test_ma_poca_an_agent_that_left_is_paid_what_its_team_earns_later(make_batch, estimator):
    """Agent 0 leaves after its turn; the team's 1 comes two turns later, and reaches it there."""
    batch = make_batch(
        [1, 0, 1], episode=[0] * 3, agent=[0, 1, 1],
        signals={
            "value": [0.4, 0.5, 0.6], "value_others": [0.4, 0.5, 0.6],
            "value_event": [0.4, 0.5, 0.6], "event_exogenous": [1, 1, 1],
        },
    )  # fmt: skip
    np.testing.assert_allclose(estimator.estimate(batch).advantage, [0.6, 0.5, 0.4])


# -- teams -----------------------------------------------------------------------------------------


def test_rema_2_a_talker_is_not_paid_for_what_its_team_earned(make_batch):
    """Planner and talker share the return 1 and 0; without the talker it would have been the same.

    GRPO cannot tell them apart, whatever it is grouped by.
    """
    batch = make_batch(
        [1, 1, 0, 0], episode=[0, 0, 1, 1], agent=[0, 1, 0, 1],
        signals={
            "return_without": [0, 1, 0, 0], "shapley_value": [1, 0, 0, 0],
            "action_value": [1, 0.5, 0, 0.5], "action_value_mean": [0.5, 0.5, 0.5, 0.5],
        },
    )  # fmt: skip
    for estimator in (LeaveOneOut(), Shapley(), COMA()):
        assert estimator.estimate(batch).advantage[[1, 3]].tolist() == [0, 0]
        assert estimator.estimate(batch).advantage[0] > 0
    broadcast = GRPO().estimate(batch).advantage
    assert broadcast[0] == broadcast[1]


def test_dr_mas_statistics_of_the_team_scale_agents_unlike(make_batch):
    """Agent-wise, the mean square is (n - 1)/n for the sample's standard deviation, not 1."""
    rewards = [1, 0, 1, 1, 100, 0, 200]
    batch = make_batch(rewards, episode=[0, 1, 2, 3, 0, 1, 2], agent=[0] * 4 + [1] * 3)
    got = DrMAS(epsilon=0.0).estimate(batch).advantage
    squares = [np.mean(got[batch.agent == agent] ** 2) for agent in (0, 1)]
    np.testing.assert_allclose(squares, [3 / 4, 2 / 3])
    team = GRPO(by=("group",), mix_roles=True, epsilon=0.0).estimate(batch).advantage
    assert np.mean(team[:4] ** 2) < 0.4, "beside the other's scale, agent 0 hardly learns"


def test_toca_strata_are_not_mixed_again_by_centring_over_the_group(make_batch):
    """Dividing behind the strata does no harm; subtracting the group's mean puts turnover back."""
    batch = make_batch(
        [1, 0, -3, -4, -4], signals={"event": [0, 0, 1, 1, 1], "event_exogenous": [1] * 5}
    ).with_signals({"event": np.array([0, 0, 1, 1, 1])})
    credit = TOCASharedReading().estimate(batch)
    for stratum in (batch.signals["event"] == 0, batch.signals["event"] == 1):
        np.testing.assert_allclose(credit.advantage[stratum].sum(), 0, atol=1e-12)
    drawn_in = TOCAStratifiedReading(kappa=2.0).estimate(batch)
    assert drawn_in.advantage[batch.signals["event"] == 1].sum() < -0.1


def test_toca_a_cost_of_turnover_alone_is_nobodys_credit(make_batch):
    """With exact values, an event that costs 3 whatever anybody does leaves nothing."""
    event = np.array([0, 1, 0, 1])
    signals = {
        "value": [-1.5] * 4, "value_event": -3.0 * event, "event_exogenous": [1] * 4,
    }  # fmt: skip
    batch = make_batch(-3.0 * event, signals=signals)
    assert TOCAGAEReading().estimate(batch).advantage.tolist() == [0] * 4
    assert GAE().estimate(batch).advantage.tolist() == [1.5, -1.5, 1.5, -1.5]


def test_lca_a_newcomer_is_not_paid_for_the_state_that_it_finds(make_batch):
    """A hand-over at potential 8: the one who leaves earned it, the one who comes earns 1."""
    batch = make_batch(
        [0, 0, 0], episode=[0] * 3, agent=[0, 0, 1],
        signals={"potential": [0, 3, 8], "potential_next": [0, 8, 9]},
    )  # fmt: skip
    assert LCAReading().estimate(batch).advantage.tolist() == [3, 5, 1]


def test_seqau_indicators_of_agents_that_add_up_to_one_do_not_break_the_fit(make_batch):
    """Two indicators that always sum to 1 say the same as a constant: a ridge decides."""
    one = [1.0, 0.0] * 3
    batch = make_batch(
        [1, 1, 0, 0, 2, 2], episode=[0, 0, 1, 1, 2, 2], agent=[0, 1] * 3,
        signals={"first": one, "second": [1 - x for x in one], "both": [1.0] * 6},
    )  # fmt: skip
    credit = LaReReading(factors=("first", "second", "both"), ridge=1e-6).estimate(batch)
    assert np.all(np.isfinite(credit.advantage))
    np.testing.assert_allclose(credit.advantage, 0, atol=1e-6)


def test_harl_the_ratio_of_a_long_reply_does_not_explode(make_batch):
    """Each token's ratio is 1.1; the product over 100 tokens is 13781, its geometric mean 1.1."""
    product = 1.1**100
    signals = {"value": [0.0, 0.0], "ratio_before": [product, 1 / product]}
    batch = make_batch([1, 1], signals=signals)
    wild = HAPPO(normalise=False).estimate(batch).advantage
    assert wild[0] > 1e4
    kept = HAPPO(normalise=False, limit=2.0).estimate(batch).advantage
    np.testing.assert_allclose(kept, [2, 0.5])
