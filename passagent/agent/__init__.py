"""One conversation with a model, from a parent candidate to new ones: prompts, tools, workspace, loop."""
