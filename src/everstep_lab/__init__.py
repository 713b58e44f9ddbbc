"""Measures Everstep: recipes and their reproduction, benchmarks beside other libraries, tuning.

A process that trains imports nothing of it. Its commands and recipes are found by entry points.
"""
