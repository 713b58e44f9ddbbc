"""The parts of the adapter of IsaacGym tasks."""
