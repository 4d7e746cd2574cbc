"""`passagent mcp`: the evaluator, the knowledge and the store as tools for any coding agent."""
