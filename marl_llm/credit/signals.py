"""Signals: columns that are attached to a batch because an estimator needs them.

Each has one meaning, one unit and one annotator, said here. A label that could not be had is
*missing*, never 0: its row is True in the companion column ``NAME/missing``, and its value is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_llm.errors import nearest

MISSING = "/missing"  # ends the name of a signal's companion: which labels could not be had
REWARD = "reward/"  # begins the name of a part of the reward that somebody keeps apart


@dataclass(frozen=True, slots=True)
class Signal:
    """What a column says."""

    over: Literal["turn", "token", "key"]  # a key is an integer per turn that one can pool by
    meaning: str  # with its unit
    annotator: str  # where it comes from: a YAML of configs/annotator, or who it takes in words


KNOWN: dict[str, Signal] = {
    # -- values -----------------------------------------------------------------------------------
    "value": Signal("turn", "V before the turn, in reward", "state_values"),
    "value_next": Signal("turn", "V after an agent's last turn, read where cut short",
                         "state_values"),
    "token_value": Signal("token", "V before each sampled token, in reward", "state_values"),
    "value_high": Signal("turn", "HiPER's V of the planner before the turn",
                         "plan_values"),
    "value_switch": Signal("turn", "HiPER's V of the switch head before the turn",
                           "plan_values"),
    "value_behind": Signal("turn", "V with which an agent goes on, or its caller at the end of the "
                           "call, read at last turns", "delegation_values"),
    "span": Signal("turn", "turns of anybody until the agent goes on, or its caller",
                   "delegation_values"),
    "reward_others": Signal("turn", "what others earned until then, discounted to the turn",
                            "delegation_values"),
    "switch": Signal("turn", "1 where a new sub-goal starts", "plan_blocks"),
    "switch_probability": Signal("turn", "probability of a new sub-goal here", "the policy"),
    "value_keep": Signal("turn", "HiPER's V of the executor before the turn, had the old sub-goal "
                         "been kept", "a critic"),
    "greedy_return": Signal("turn", "return of the agent in a greedy episode of the group",
                            "greedy_return"),
    # -- tokens -----------------------------------------------------------------------------------
    "token_id": Signal("token", "the sampled id", "token_statistics"),
    "token_reward": Signal("token", "reward of this token beside the turn's", "a process judge"),
    "segment": Signal("token", "number of the step a token is in, ascending in a turn; -1 = none",
                      "a splitter"),
    "block": Signal("token", "part of HiPER's reply that a token is in: 0 switch, 1 sub-goal, "
                    "2 action, -1 none of them", "plan_blocks"),
    "wrong_share": Signal("token", "share of the critiques that call the token's step wrong, in "
                          "[0, 1]", "a judge"),
    "commitment": Signal("token", "1 = the token's segment ends in a right answer, -1 = it leads "
                         "away from one, 0 = neither", "checked answers"),
    "reference_logprob": Signal("token", "log-prob under the reference, nats",
                                "reference_logprobs"),
    "old_logprob": Signal("token", "log-prob under the policy before the update, nats",
                          "token_statistics"),
    "new_logprob": Signal("token", "log-prob under the policy now, nats", "the policy"),
    "negative_logprob": Signal("token", "log-prob under a prompt that asks for the wrong answer, "
                               "nats", "negative_prompt"),
    "teacher_logprob": Signal("token", "log-prob under the teacher of the turn's role, nats",
                              "a teacher"),
    "entropy": Signal("token", "entropy of the policy at the token, nats", "token_statistics"),
    "certainty": Signal("token", "KL from uniform to the policy at the token, nats",
                        "token_statistics"),
    "logit": Signal("token", "raw logit of the sampled token", "token_statistics"),
    "collision": Signal("token", "Σ_v π(v)² at the token", "token_statistics"),
    # -- probes of the answer ---------------------------------------------------------------------
    "gold_before": Signal("turn", "mean log-prob of the right answer's tokens before the turn, "
                          "nats", "gold_answers"),
    "gold_after": Signal("turn", "the same after the turn", "gold_answers"),
    "answer_before": Signal("turn", "probability of the agent's final answer before the turn: mean "
                            "over wordings of its cluster", "answer_clusters"),
    "answer_after": Signal("turn", "the same after the turn", "answer_clusters"),
    "answer_share": Signal("turn", "share of the group's episodes in which the agent's answer is "
                           "of that cluster", "answer_clusters"),
    "hindsight_logprob": Signal("turn", "mean log-prob of the turn's tokens given how the episode "
                                "ended, nats", "hindsight"),
    "ablated_return": Signal("turn", "return of the agent when this turn is left out or redrawn",
                             "turn_ablation"),
    "evidence_unit": Signal("key", "number of the unit of information that the turn brought, -1 = "
                            "none", "evidence extraction"),
    # -- judges -----------------------------------------------------------------------------------
    "judge_good": Signal("turn", "1 = the turn helped, 0 = it did not", "judge_good"),
    "judge_role": Signal("turn", "0 decisive, 1 exploratory, 2 neutral, 3 regressive",
                         "judge_role"),
    "judge_credit": Signal("turn", "credit for verified evidence first seen here, in [0, 1)",
                           "a judge"),
    "judge_score": Signal("turn", "score of the step", "judge_score"),
    "prm_error": Signal("turn", "score of the step, 0 = good, 1 = bad", "a process reward model"),
    "success_before": Signal("turn", "probability of success before the turn",
                             "a process reward model"),
    "success_after": Signal("turn", "the same after the turn", "a process reward model"),
    "cited": Signal("turn", "1 = the agent's own final answer cites this turn", "citations"),
    "rubric_pass": Signal("turn", "criteria passed that cite this turn", "a judge"),
    "rubric_fail": Signal("turn", "criteria failed that cite this turn", "a judge"),
    "rubric_item": Signal("token", "number of the rubric item whose verdict was traced to this "
                          "token; -1 = none", "a judge"),
    "rubric_verdict": Signal("token", "verdict on that item, from failed 0 to passed 1", "a judge"),
    "informative_outcome": Signal("turn", "how much the game's reward tells about the turn, >= 0",
                                  "a judge"),
    "informative_shaping": Signal("turn", "how much shaping tells about the turn, >= 0",
                                  "a judge"),
    "support_out": Signal("turn", "edges to steps that use this one", "support_graph"),
    "support_in": Signal("turn", "edges from steps that this one uses", "support_graph"),
    "contradicted": Signal("turn", "edges of failed use", "support_graph"),
    "faulty": Signal("turn", "1 = the step is wrong", "support_graph"),
    # -- progress models --------------------------------------------------------------------------
    "progress": Signal("turn", "predicted contribution to the return", "a progress model"),
    "grounded": Signal("turn", "1 = the action could be carried out", "the game"),
    # -- trees ------------------------------------------------------------------------------------
    "node": Signal("key", "equal = the very same decision, shared by all episodes forked behind "
                   "it", "a tree rollout"),
    "tree": Signal("key", "number of the tree that an episode grew in", "a tree rollout"),
    "suffix_of": Signal("key", "number of the reset group an episode was replayed in; -1 = fresh",
                        "a tree rollout"),
    "replayed": Signal("turn", "1 = copied from the episode that this one was forked from",
                       "a tree rollout"),
    # -- states -----------------------------------------------------------------------------------
    "belief_key": Signal("key", "equal = same stated belief", "the role's parser"),
    "belief_reward": Signal("turn", "reward for a consistent belief", "the game"),
    # -- teams ------------------------------------------------------------------------------------
    "caller": Signal("key", "number in its episode of the turn that called this one's agent, "
                     "whoever played it; -1 = nobody", "the game"),
    "call_share": Signal("turn", "weight of the turn's call in its tree: that of its caller, over "
                         "the calls that the caller made, whoever played them", "the game"),
    "value_others": Signal("turn", "V given what the others did, not this agent's action (b_i)",
                           "a critic"),
    "action_value": Signal("turn", "Q of the action taken, the others' as they were",
                           "action_values"),
    "action_value_mean": Signal("turn", "mean of Q over this agent's actions under its own policy, "
                                "the others' as they were", "action_values"),
    "return_without": Signal("turn", "team return when this agent is replaced by the default",
                             "agent_ablation"),
    "shapley_value": Signal("turn", "the agent's share of what its team earned, in reward",
                            "coalition replays"),
    "potential": Signal("turn", "score of the team's state before the turn, as this agent sees it",
                        "ranked states"),
    "potential_next": Signal("turn", "the same score after an agent's last turn", "ranked states"),
    "design": Signal("key", "number of the plan that the episode carries out, shared by all its "
                     "executions", "a tree rollout"),
    "event": Signal("key", "number of the episode's scheduled event stratum, drawn before it "
                    "began", "the event schedule"),
    "event_exogenous": Signal("turn", "1 = no action had a part in the event",
                              "the event schedule"),
    "value_event": Signal("turn", "b: V before the turn given the event at hand", "a critic"),
    "ratio_before": Signal("turn", "product of the ratios of the agents updated before",
                           "the learner"),
    "unscored": Signal("turn", "1 = the reward of the turn is not known", "the game"),
}  # fmt: skip

PART_OF_REWARD = Signal("turn", "a part of the turn's reward", "the game")
SIGNAL_KEYS = tuple(name for name, signal in KNOWN.items() if signal.over == "key")


def described(name: str) -> Signal | None:
    """What a column says; None if it is in no list."""
    return PART_OF_REWARD if name.startswith(REWARD) else KNOWN.get(name)


def lacking(name: str) -> str:
    """What to do about a signal that a batch does not have, as the end of a sentence."""
    signal = described(name)
    if signal is not None:
        return f"it is {signal.meaning}, and comes from {signal.annotator}"
    return nearest(name, KNOWN)
