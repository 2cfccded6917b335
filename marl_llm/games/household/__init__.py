"""Household: errands in a house that is only seen from where one stands. Made from a seed.

    house.py     rooms, receptacles, things and their states; what a body may do and does
    errands.py   levels, errands, their sub-goals, and when each of them is true
    ways.py      the next command towards a sub-goal, for players who know the truth
    single.py    one agent does all errands
    team.py      a planner sends executors into the rooms

The kinds of errands are those of ALFWorld: put a thing somewhere; look at one under the lamp;
clean, heat or cool one and put it somewhere; put two things somewhere; and chains of these. The
rules are our own, and nothing is downloaded.
"""
