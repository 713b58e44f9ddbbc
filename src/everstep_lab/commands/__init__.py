"""Commands of the `everstep` program that measure; see `everstep.cli`."""
