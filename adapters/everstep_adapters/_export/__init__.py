"""The parts of the way back."""
