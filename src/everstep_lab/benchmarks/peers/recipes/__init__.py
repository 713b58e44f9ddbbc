"""Other libraries that train recipes, for `everstep reproduce --compare`.

They run as `python -m peers.recipes.NAME` in an interpreter without Everstep, and share the
environments, the normalisation's rules and the evaluation.
"""
