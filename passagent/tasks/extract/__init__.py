"""From a model to tasks: capture it with Dynamo, write its graphs, validate them, cut them into regions."""
