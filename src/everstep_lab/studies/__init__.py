"""Measurements of one question each: `python -m everstep_lab.studies.memory`.

Each prints its table, and its docstring says what is measured. The tables that came of them are in
the documentation: "Evidence: performance" and the pages beside it.
"""
