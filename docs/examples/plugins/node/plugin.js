#!/usr/bin/env node
// A plugin without any library: a tool that counts words, and a hook that keeps
// the model from force-pushing. It speaks MCP, one JSON message a line, and
// CodeWork's extension "sh.codework/plugin".
"use strict";

const extension = { version: 1, id: "example.tool.words-node", kind: "tool", hooks: true };

const methods = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion,
    capabilities: { tools: {}, extensions: { "sh.codework/plugin": extension } },
    serverInfo: { name: "words", version: "1.0.0" },
  }),
  ping: () => ({}),
  "tools/list": () => ({
    tools: [{
      name: "count_words_node",
      description: "Counts the words of a text.",
      inputSchema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
    }],
  }),
  "tools/call": ({ arguments: { text } }) => ({
    content: [{ type: "text", text: String(text.split(/\s+/).filter(Boolean).length) }],
  }),
  "codework/setup": () => ({ hooks: [{ tool: "bash", before: true }] }),
  "codework/tool.before": ({ arguments: { command } }) =>
    command.includes("push --force") ? { block: true, reason: "force-pushing is not allowed here" } : {},
};

require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return; // a notification
  const answer = { jsonrpc: "2.0", id };
  try {
    if (methods[method]) answer.result = methods[method](params || {});
    else answer.error = { code: -32601, message: "no method " + method };
  } catch (e) {
    answer.error = { code: -32603, message: String(e) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
});
