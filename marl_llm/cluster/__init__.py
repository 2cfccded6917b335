"""Ray, and nothing but Ray: plain classes of ours, wrapped in actors, behind typed clients.

One engine actor and one trainer actor per policy, rollout workers, and the store. Nobody outside
this package writes ``.remote``.
"""
