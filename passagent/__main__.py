"""`python -m passagent` is the command `passagent`."""

from passagent.cli import main

main()
