"""The evaluator as an environment for reinforcement learning. Imports neither torch nor a trainer."""

from passagent.data.rl.pass_env import PassEnv

__all__ = ["PassEnv"]
