"""A retriever of your own: `--set experience.retriever=examples.extend.retriever:Notes`."""

from collections.abc import Iterable

from passagent.errors import UsageError
from passagent.experience import Passage
from passagent.extend import Target

NOTES = {"notes.md": "Read each row once: keep it in registers between the mean and the variance."}


class Notes:
    """A team's own notes in place of passagent's knowledge."""

    def search(
        self, query: str, operators: Iterable[str] = (), limit: int = 5, target: Target | None = None
    ) -> list[Passage]:
        return [Passage(path, "Notes", text) for path, text in NOTES.items()][:limit]

    def read(self, path: str, target: Target | None = None) -> str:
        if path not in NOTES:
            raise UsageError(f"no note '{path}'")
        return NOTES[path]
