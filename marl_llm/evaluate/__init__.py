"""Evaluation: how well policies play, against the truth where there is one, with intervals.

    text_tree.py    a small game as a tree of texts, and policies written down on it
    nash_conv.py    the model's own policy state by state, and its exact NashConv
    matches.py      a contender against a panel: every seat, the same deals, forfeits apart
    sub_calls.py    credit of a planner's calls against what they were worth
    statistics.py   intervals, paired differences, and the words for them

Nothing here trains, and every draw comes from the seed that the caller gives.
"""
