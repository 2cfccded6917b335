"""Answer clusters: what a group answers, and how likely each turn makes its episode's answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_llm.annotate.answers import answer_logprobs
from marl_llm.annotate.material import Material
from marl_llm.annotate.transcripts import own_turns
from marl_llm.credit import checks
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerClusters:
    """The final answers of a group's agents, those that match being one cluster.

    An agent's answer is the action of its last turn. Its share is the part of the group's episodes
    in which the same agent answers alike. Its probability before and after a turn is the mean, over
    up to `references` spellings of its cluster, of exp(mean log-prob of the answer's tokens), as
    scored in `gold_answers`. An agent without an action at the end has no answer: both are 0.

    Clusters by meaning need a model for that; here equal texts match ("exact"), or texts that are
    equal but for case, white space and closing punctuation ("normalised").

    Source: SIOP, arXiv 2605.04984, and its code, which clusters by entailment.
    """

    signals: ClassVar[tuple[str, ...]] = ("answer_before", "answer_after", "answer_share")

    match: Literal["exact", "normalised"] = "normalised"
    references: int = 3  # spellings of a cluster that are scored, the most frequent first
    temperature: float = 1.0  # of the softmax

    def __post_init__(self) -> None:
        checks.one_of("answer_clusters.match", self.match, ("exact", "normalised"))
        checks.within("answer_clusters.references", self.references, 1)
        checks.within("answer_clusters.temperature", self.temperature, 1e-6)

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        batch, n = material.batch, len(material.turns)
        spellings: dict[tuple[int, int, str], Counter[str]] = {}  # group, agent, cluster
        answering: Counter[tuple[int, int]] = Counter()  # episodes of a group's agent
        cluster: dict[int, tuple[int, int, str]] = {}  # by row
        for rows in own_turns(material):
            who = int(batch.group[rows[0]]), int(batch.agent[rows[0]])
            answering[who] += 1
            answer = material.turns[rows[-1]].action
            if answer is not None:
                key = *who, answer if self.match == "exact" else normalised(answer)
                spellings.setdefault(key, Counter())[answer] += 1
                for row in rows:
                    cluster[row] = key
        share = np.zeros(n)
        asked: list[tuple[int, str]] = []
        for row, key in cluster.items():
            share[row] = spellings[key].total() / answering[key[:2]]
            asked += [(row, text) for text, _ in spellings[key].most_common(self.references)]
        before, after = answer_logprobs(material, asked, self.temperature)
        of = np.array([row for row, _ in asked], dtype=np.int64)
        count = np.maximum(np.bincount(of, minlength=n), 1)
        return {
            "answer_before": np.bincount(of, np.exp(before), n) / count,
            "answer_after": np.bincount(of, np.exp(after), n) / count,
            "answer_share": share,
        }


def normalised(answer: str) -> str:
    """An answer without case, outer and doubled white space, and closing punctuation."""
    return " ".join(answer.casefold().split()).rstrip(" .!?;,")
