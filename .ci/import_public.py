"""Imports every public module of the installed packages, and every name they export."""

import importlib
import pkgutil

import everstep
import everstep_adapters
import everstep_lab

count = 0
for package in (everstep, everstep_lab, everstep_adapters):
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        # Peers are other libraries, which are not installed here.
        if "._" in info.name or ".peers" in info.name:
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            if error.name != "jax":  # the adapter of environments in JAX imports these late
                raise
            continue
        exported = getattr(module, "__all__", ())
        for name in exported:
            getattr(module, name)
        count += len(exported)
assert "site-packages" in everstep.__file__, everstep.__file__
print(f"{count} public names imported from {everstep.__file__}")
