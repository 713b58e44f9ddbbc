"""The parts of the TorchRL adapter."""
