#!/usr/bin/env python3
"""A plugin without any library: a tool that counts words, and a hook that keeps
the model from force-pushing. It speaks MCP, one JSON message a line, and
CodeWork's extension "sh.codework/plugin"."""

import json
import sys

EXTENSION = {"version": 1, "id": "example.tool.words-python", "kind": "tool", "hooks": True}


def initialize(p):
    return {"protocolVersion": p["protocolVersion"],
            "capabilities": {"tools": {}, "extensions": {"sh.codework/plugin": EXTENSION}},
            "serverInfo": {"name": "words", "version": "1.0.0"}}


def tools(p):
    return {"tools": [{"name": "count_words_python", "description": "Counts the words of a text.",
                       "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}]}


def call(p):
    return {"content": [{"type": "text", "text": str(len(p["arguments"]["text"].split()))}]}


def before(p):
    if "push --force" in p["arguments"]["command"]:
        return {"block": True, "reason": "force-pushing is not allowed here"}
    return {}


METHODS = {"initialize": initialize, "ping": lambda p: {}, "tools/list": tools, "tools/call": call,
           "codework/setup": lambda p: {"hooks": [{"tool": "bash", "before": True}]}, "codework/tool.before": before}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue  # a notification
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    method = METHODS.get(message["method"])
    if method is None:
        answer["error"] = {"code": -32601, "message": "no method " + message["method"]}
    else:
        try:
            answer["result"] = method(message.get("params") or {})
        except Exception as e:
            answer["error"] = {"code": -32603, "message": repr(e)}
    print(json.dumps(answer), flush=True)
