"""Examples, as a package: their files can be trained from any directory."""
