"""Phantom search: a question about a made-up world, answered by searchers who read its pages.

    levels.py      how large and how hard a world and its questions are
    relations.py   kinds of things, what holds between them, and how one says and asks it
    names.py       made-up names, and which of them a text names
    world.py       a world from a seed: things, facts, former facts
    pages.py       its pages: paraphrases, other names, lists, distractors, old editions
    index.py       full-text search over the pages
    questions.py   expressions over the facts, the look-ups that they need, unique answers
    grammar.py     questions of a level, drawn and accepted
    tasks.py       what a task in free words asks for, and how right a report on it is
    library.py     all of that for one seed
    tools.py       search, visit and find, and what their faults do
    game.py        planner and searchers, actions, observations

Everything hangs on a level and a seed; nothing is read from disk or from a network.
"""
