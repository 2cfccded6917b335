"""Estimators of credit against the truth: which rule sees what, on worlds that are known exactly.

    measures.py   how good credit is, where the truth is known
    costs.py      what the signals of an estimator cost
    bench.py      every estimator on every truth
    games.py      exact credit in real games, from OpenSpiel's trees

`marl-llm credit bench` calls it.
"""
