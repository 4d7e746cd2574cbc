"""What examples/distill/serve.py says arrives in passagent: text, thought and calls, streamed and whole."""

import asyncio
import json
import sys
import threading
from http.server import HTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/distill"))

import serve

from passagent.config import ModelConfig
from passagent.models import open_model

ARGUMENTS = {"command": "view", "path": "task"}
SAID = f"""<think>
A short one.
</think>

I look.
<tool_call>
{json.dumps({"name": "file_editor", "arguments": ARGUMENTS})}
</tool_call>
<tool_call>
{{"name": "pass_evaluator", "arguments": {{}}}}
</tool_call>
<tool_call>
{{"name": broken}}
</tool_call>"""


class Scripted:
    """In the student's place."""

    def answer(self, body):
        asked = [serve.with_objects(message) for message in body["messages"]]
        assert all(
            isinstance(c["function"]["arguments"], dict) for m in asked for c in m.get("tool_calls", [])
        )
        choice = {"index": 0, "finish_reason": "tool_calls", "message": serve.message_of(SAID)}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        return {"id": "c", "object": "chat.completion", "created": 0, "model": "student",
                "choices": [choice], "usage": usage}  # fmt: skip


async def ask(address, stream):
    """Two replies, the second to a conversation that holds the first."""
    model = open_model(ModelConfig(name="openai/student", base_url=address, stream=stream))
    messages = [{"role": "user", "content": "Begin."}]
    for _ in range(2):
        reply = await model.complete(messages, [])
        message = reply.message
        assert message["raw"]["openai"]["reasoning_content"] == "A short one."
        assert message["content"].startswith("I look.") and "broken" in message["content"]
        calls = [(call["name"], json.loads(call["arguments"])) for call in message["tool_calls"]]
        assert calls == [("file_editor", ARGUMENTS), ("pass_evaluator", {})]
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (7, 3)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": "seen"}
            for call in message["tool_calls"]
        ]
        messages += [message, *results]
    await model.close()


serve.Handler.student = Scripted()
server = HTTPServer(("127.0.0.1", 0), serve.Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for stream in (False, True):
    asyncio.run(ask(f"http://127.0.0.1:{server.server_port}/v1", stream))
