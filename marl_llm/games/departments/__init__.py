"""Departments: a question whose answer lies in tables that no single agent can see.

Read in this order:

    world.py          the firm: departments, their tables, the levels
    questions.py      a question, its truth, and the steps that lead there
    reports.py        the values in a text, and how well they fit those that were wanted
    instructions.py   what each role is told
    game.py           the game: a planner who asks, clerks who query
"""
