"""A policy that begins with recorded behaviour."""
