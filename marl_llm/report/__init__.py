"""Report: what a person sees of a run, and the files of a run folder that it is made of.

    train ─values─▶ metrics.py   metrics.jsonl, tensorboard/     ─┐
          ─games──▶ episodes.py  episodes/update_000040.jsonl     ├─▶ html.py     report.html
          ─result─▶ summary.py   summary.json                    ─┘   picture.py  curve.png
          ─values─▶ live.py      the terminal while it trains

`calls.py` reads from an episode who asked whom for what; `alarms.py` reads from metrics whether
training has collapsed; `replays.py` makes of recorded games what the report's script draws.

The writers take plain numbers and `types.Episode`; the readers need the run folder and nothing
else, so a report can be made again at any time, of a run that goes on or was cut short too.
"""
