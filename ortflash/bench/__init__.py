"""Measured figures: ours and every peer in one process, with errors, clocks, versions and a date beside them.

``ortflash bench kernel`` races single attention calls, ``bench model`` whole models, ``bench table`` prints what
``docs/benchmarks`` holds as the README shows it. Nothing is quoted that one of these commands doesn't reproduce.
"""

from .command import app

__all__ = ["app"]
