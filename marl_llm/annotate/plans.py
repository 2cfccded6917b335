"""Plans: what the replies of a batch say about sub-goals, read as the seats read them."""

from __future__ import annotations

from dataclasses import dataclass

from marl_llm.agents.plan_execute import NO_SUBGOAL, Plan, PlanExecute
from marl_llm.annotate.contexts import seat_of
from marl_llm.annotate.material import Material
from marl_llm.errors import EpisodeError
from marl_llm.rollout.play import ModelSeat
from marl_llm.types import Finish, Turn


@dataclass(frozen=True, slots=True)
class Stated:
    """One turn of the policy."""

    turn: Turn
    seat: ModelSeat
    first: bool  # of its agent in its episode
    before: str  # the sub-goal that the prompt showed
    after: str  # ... and behind the reply
    plan: Plan | None  # None = the reply was a fault
    plans: bool  # whether the seat's parser knows sub-goals at all

    @property
    def switches(self) -> bool:
        """Whether a sub-goal starts here: an agent's first turn always starts one."""
        return self.first or (self.plan is not None and self.plan.switch)


def stated(material: Material) -> list[Stated]:
    """The policy's turns in the order of the batch.

    Raises:
        EpisodeError: no turn comes from a seat whose parser is `PlanExecute`.
    """
    found = []
    for episode in material.episodes:
        held: dict[str, str] = {}
        for turn in episode.turns:
            if turn.policy != material.policy:
                continue
            agent, seat = turn.observation.agent, seat_of(material, turn)
            parser, plan = seat.role.parser, None
            before = held.get(agent, NO_SUBGOAL)
            if isinstance(parser, PlanExecute):
                _, plan = parser.go_on(before, turn.reply, turn.finish or Finish.STOP)
            after = before if plan is None else plan.then(before)
            plans = isinstance(parser, PlanExecute)
            found.append(Stated(turn, seat, agent not in held, before, after, plan, plans))
            held[agent] = after
    if not any(each.plans for each in found):
        raise EpisodeError(
            f"policy {material.policy!r} says nothing about sub-goals in any turn; give the role "
            "of its seat the parser marl_llm.agents.plan_execute.PlanExecute, or take the "
            "annotators plan_blocks and plan_values out"
        )
    return found
