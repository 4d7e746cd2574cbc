"""One optimiser step of TRL's GRPOTrainer with PassEnv, on the CPU; test_rl.py runs it in `.envs/trl`.

The student is a tiny Qwen3 with random weights and a tokenizer trained here. One so random never calls a
tool, so its `generate` is scripted: of three completions one writes the given pass, checks and evaluates it,
one gives up, and one does as the first, on a machine that fails. Everything else is TRL's own: the tools'
schemas, parsing the calls, running them, rewards, advantages, loss and the step.
"""

import json
import sys
from functools import partial
from importlib import resources

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from passagent.data.rl import PassEnv
from passagent.errors import InfrastructureError

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QUICK = {"evaluator.budget_s": 0.1}
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def make_tokenizer(text):
    """A byte-level BPE of 1000 pieces with Qwen3's marks and TRL's copy of its chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_tokens(MARKS)
    template = resources.files("trl") / "chat_templates/qwen3.jinja"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        chat_template=template.read_text(),
    )


class Scripted(Qwen3ForCausalLM):
    """A Qwen3 that says what it is given: `script` gives, for each call of generate, a text for each row."""

    script, tokenizer = (), None

    def generate(self, input_ids, **others):
        texts = next(self.script)
        assert len(texts) == len(input_ids)
        said = [self.tokenizer(text + SPECIAL[2])["input_ids"] for text in texts]
        width = max(map(len, said))
        pad = self.tokenizer.pad_token_id
        rows = torch.tensor([ids + [pad] * (width - len(ids)) for ids in said])
        return torch.cat([input_ids, rows], dim=1)


def call(name, **arguments):
    """A tool call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class LostMachine:
    """In the evaluator's place: no evaluation comes back."""

    async def confirmed(self, task, candidate):
        raise InfrastructureError("a lost GPU")

    async def outline(self, task, candidate):
        return []


def make_environments(make):
    """Three environments, the last on a machine that fails."""
    last = make()
    opened = last._open_tools
    last._open_tools = lambda task, evaluator: opened(task, LostMachine())
    yield from (make(), make(), last)


def main(task, files, runs_dir, out):
    writes = [
        call("file_editor", command="create", path=name, file_text=text) for name, text in files.items()
    ]
    acts = "\n".join([*writes, call("check"), call("pass_evaluator")])
    tokenizer = make_tokenizer(acts)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=16384,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Scripted(config)
    Scripted.tokenizer, Scripted.script = tokenizer, iter([[acts, "I give up.", acts], ["Done.", "Done."]])
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    environments = make_environments(partial(PassEnv, settings=QUICK, rules=False, runs_dir=runs_dir))
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "task": task}] * 3),
        environment_factory=lambda: next(environments),
        args=GRPOConfig(
            output_dir=out,
            max_steps=1,
            num_generations=3,
            per_device_train_batch_size=3,
            max_completion_length=8192,
            learning_rate=1e-2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        ),
    )
    trainer.train()
    changed = sum(not torch.equal(before[name], weight) for name, weight in model.named_parameters())
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    told = {
        "steps": trainer.state.global_step,
        "changed": changed,
        "tools": sorted(tool.__name__ for tool in trainer.tools),
        "mean": logged["reward"],
        "rewards": [env.reward for env in trainer.environments],
        "faults": [env.fault for env in trainer.environments],
        "files": trainer.environments[0].best_files,
        "calls": logged["tools/call_frequency"],
        "failures": logged["tools/failure_frequency"],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
