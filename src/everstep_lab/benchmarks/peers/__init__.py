"""Programs that train with other libraries on the same work; none of them imports Everstep.

Each is run by an interpreter that has its library: `python -m peers.rl8`, with the directory above
in `PYTHONPATH`. What they say and are told is in `_serving`.
"""
