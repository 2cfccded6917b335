"""Rollout: many games at once over the engines.

`plans.py` says which episodes are wanted and who sits where; `play.py` plays them, hundreds at a
time, so that the moves of different games meet in one batch of their policy's engine, from the
start or on from an earlier episode's turns; `retelling.py` tells a finished episode again;
`shaping.py` is the reward for form (format, length), kept apart from the game's and capped.
"""
