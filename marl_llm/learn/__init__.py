"""Learning: tokens and advantages in, new weights out.

    turns, TurnBatch, Credit ─▶ rows.py (rows of ids, positions of sampled tokens)
        ─▶ learner.py (micro-batches by token budget, log-probs at the sampling temperature)
        ─▶ losses.py (per-token terms × weights with global denominators) ─▶ optimizer ─▶ Weights

All losses work on *flat sampled tokens*; the weight of each token in the objective is computed once
for the whole batch, so any split into micro-batches gives the same gradient.
"""
