"""A tool of your own: `--set 'agent.tools=[pass_evaluator, examples.extend.tool:CountLines]'`."""

from typing import Any

from passagent.agent.workspace import Workspace
from passagent.models.types import ToolSpec


class CountLines:
    """Says how long the pass is."""

    spec = ToolSpec(
        "count_lines",
        "Count the lines of your pass directory.",
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    )

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    async def run(self, arguments: dict[str, Any], call_id: str) -> str:
        files = self.workspace.files()
        return "\n".join(f"{name}: {len(text.splitlines())} lines" for name, text in files.items())
