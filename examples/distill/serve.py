"""A model behind the part of OpenAI's Chat Completions that passagent asks for.

    python serve.py MODEL --port 8000

One request at a time, with transformers' `generate`. It is made to try a student out on any machine. To judge
a student use vLLM or SGLang, which are many times faster.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Body = dict[str, Any]


class Student:
    """A model and its tokenizer."""

    def __init__(self, path: str, most: int) -> None:
        """most: tokens of a reply at most."""
        self.tokens = AutoTokenizer.from_pretrained(path)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype="auto").to(device).eval()
        self.most = most

    def answer(self, body: Body) -> Body:
        """The reply to a request, as a `chat.completion`."""
        prompt = self.tokens.apply_chat_template(
            [with_objects(message) for message in body["messages"]],
            tools=body.get("tools"),
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        ).to(self.model.device)
        asked = body.get("max_tokens") or body.get("max_completion_tokens") or self.most
        warm = {"do_sample": True, "temperature": body["temperature"]} if body.get("temperature") else {}
        with torch.inference_mode():
            [said] = self.model.generate(
                **prompt,
                max_new_tokens=min(asked, self.most),
                eos_token_id=self.tokens.eos_token_id,
                pad_token_id=self.tokens.pad_token_id,
                **(warm or {"do_sample": False}),
            )
        begin = prompt["input_ids"].shape[1]
        new = said[begin:].tolist()
        is_whole = new[-1] == self.tokens.eos_token_id
        message = message_of(self.tokens.decode(new[:-1] if is_whole else new))
        reason = ("tool_calls" if "tool_calls" in message else "stop") if is_whole else "length"
        return {
            "id": "chatcmpl-student",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {
                "prompt_tokens": begin,
                "completion_tokens": len(new),
                "total_tokens": begin + len(new),
            },
        }


def with_objects(message: Body) -> Body:
    """A message whose calls have their arguments as objects, as chat templates want them."""
    calls = []
    for call in message.get("tool_calls") or []:
        function = dict(call["function"])
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError:  # what is no JSON stays the text that it is
            pass
        calls.append({**call, "function": function})
    text = {"content": message.get("content") or ""}
    return {**message, **text, **({"tool_calls": calls} if calls else {})}


def message_of(text: str) -> Body:
    """What a Qwen3 wrote, as a message: its thought, its calls, and the text that is left."""
    message: Body = {"role": "assistant"}
    if found := re.match(r"\s*<think>(.*?)</think>", text, re.S):
        text = text[found.end() :]
        if thought := found[1].strip():
            message["reasoning_content"] = thought
    calls = []
    for block in re.findall(r"<tool_call>.*?</tool_call>", text, re.S):
        try:
            call = json.loads(block.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        except (ValueError, TypeError, KeyError):  # no call: it stays text
            continue
        calls.append({"id": f"call_{time.monotonic_ns()}", "type": "function", "function": function})
        text = text.replace(block, "", 1)
    if calls:
        message["tool_calls"] = calls
    return {**message, "content": text.strip()}


class Handler(BaseHTTPRequestHandler):
    """POST .../chat/completions. A streamed reply comes as one piece."""

    student: Student

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.student.answer(body)
        if body.get("stream"):
            choice = reply["choices"][0]
            choice["delta"] = choice.pop("message")
            for index, call in enumerate(choice["delta"].get("tool_calls", [])):
                call["index"] = index
            reply["object"] = "chat.completion.chunk"
            self._send("text/event-stream", f"data: {json.dumps(reply)}\n\ndata: [DONE]\n\n")
        else:
            self._send("application/json", json.dumps(reply))

    def _send(self, kind: str, text: str) -> None:
        data = text.encode("utf-8")
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a directory with model and tokenizer")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--most", type=int, default=16000, help="tokens of a reply at most")
    parser.add_argument("--address", type=Path, help="a file that the address is written to")
    options = parser.parse_args()
    Handler.student = Student(options.model, options.most)
    server = HTTPServer(("127.0.0.1", options.port), Handler)
    address = f"http://127.0.0.1:{server.server_port}/v1"
    print(f"serving {options.model} at {address}", flush=True)
    if options.address:
        options.address.write_text(address + "\n")
    server.serve_forever()


if __name__ == "__main__":
    main()
