"""A stopping rule of your own: `--set 'search.stop=[examples.extend.stop:FirstCorrect]'`."""

from passagent.config import SearchConfig
from passagent.search.stop import Progress


class FirstCorrect:
    """Stop as soon as a pass is correct, however fast it is."""

    def __init__(self, config: SearchConfig) -> None:
        pass

    def __call__(self, progress: Progress) -> str | None:
        return None if progress.best_as is None else "a pass is correct"
