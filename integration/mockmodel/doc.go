// Package mockmodel is a scripted model server: it speaks the wire protocols of
// real providers on a loopback port and says exactly what a test told it to
// say, faults included.
//
// It speaks OpenAI Chat Completions (POST …/chat/completions), OpenAI Responses
// (POST …/responses) and their form for ChatGPT plans (POST …/codex/responses),
// Anthropic Messages (POST …/messages) and Google's Gemini API (POST
// …/models/M:streamGenerateContent and :generateContent), each with server-sent
// events and without, and lists its models at GET …/models. One file holds one
// protocol.
//
// # Promises
//
//   - The n-th request that reaches a script gets the n-th answer of it, and no
//     answer is given twice. Requests that Strict or RequireKey turn away use up
//     no answer.
//   - A script that has run out, an unknown script name and an unknown path are
//     answered with an error and recorded as a [Violation]; they are never
//     answered with something plausible.
//   - Every event is handed to the kernel before the next step begins, so what a
//     hold point, a stall or a cut comes after has been sent.
//   - Nothing blocks for longer than the client stays: a stall, a delay and a
//     hold end when the client goes away or the server is closed. After Close
//     nothing of the server is running.
//   - Requests are recorded before they are answered. Their bodies are kept up to
//     a limit in total (KeepBytes); the oldest are forgotten first.
//
// # Scripts
//
// A script is a list of answers, an answer a list of steps. In Go these are the
// types [Script], [Answer] and the steps such as [Text] and [Call]. In a file it
// is JSON in which comments and trailing commas are allowed:
//
//	[
//	  // first request: think, say something, call a tool
//	  [ {"reasoning": "a listing will do", "signature": "sig-1"},
//	    {"text": "Let me look.", "split": 3, "delay": "20ms"},
//	    {"call": "bash", "id": "t1", "args": {"command": "ls"}} ],
//	  // second: turned away
//	  [ {"http": 429, "headers": {"Retry-After": "1.5"}} ],
//	  // third: the connection breaks after four events
//	  [ {"text": "I see a", "split": 5}, {"cut": 4, "mode": "reset"} ],
//	  // fourth: a bare string is an answer of one text
//	  "There are two files."
//	]
//
// An object instead of the list gives several scripts by name; "default" is the
// one for requests that name none:
//
//	{"default": ["hello"], "one": [[{"text": "first"}]], "two": ["second"]}
//
// A request names its script by script=NAME in a user text; the newest text that
// names one decides. Each script counts for itself, so that sessions which run
// at the same time do not take each other's answers.
//
// The steps, by their key. A duration is a Go duration string or a number of
// seconds.
//
//	text       text of the answer. split: number of deltas, delay: time between
//	           them. Consecutive texts continue the same part.
//	reasoning  thinking. signature (made up when absent), redacted; field, for
//	           chat: reasoning_content (the default), reasoning, reasoning_text,
//	           reasoning_details, or think for text between <think> tags; split,
//	           delay.
//	call       a tool call of this name. id (made up when absent), args: a string
//	           is sent as it is, anything else as its JSON text; split, delay;
//	           for chat: no_index, no_id, whole (name and arguments in one delta).
//	args       more of the arguments of the last call, as a raw string: what is
//	           written between call and args happens in the middle of the
//	           arguments. split, delay.
//	usage      {input, output, reasoning, cache_read, cache_write,
//	           cache_write_1h, cost, place, tier}; holds for the whole answer
//	           wherever it stands. place, for chat: every chunk or the finish
//	           chunk. tier, for Responses: the service tier that answered.
//	end        how the answer ends: "" for the usual reason, else the reason to
//	           state, in any protocol's words (stop, length, tool_calls,
//	           content_filter, end_turn, max_tokens, refusal, SAFETY) or any other.
//	           no_reason, no_usage, no_done leave that part out. An answer that
//	           does not say how it ends gets {"end": ""}.
//	cut        breaks the connection: "close", "reset" (no orderly shutdown), or
//	           "end" (the body ends properly, the message does not). A number
//	           means after that many events, with mode naming the kind.
//	stall      sends nothing for a time; 0 means until the client leaves.
//	hold       blocks at a named point until it is released.
//	headers    true: sends the response headers now. Without it they go out with
//	           the first event, so a stall that comes first is before them.
//	comment    a comment line, as keep-alives are sent. times, delay.
//	http       an answer with this status. headers, body; without a body, one in
//	           the provider's shape made of type, message and code. In a header
//	           "{date+3s}" becomes the HTTP date three seconds from now.
//	error      {type, message, code}: an error event inside the stream, which
//	           ends there.
//	garbage    these bytes in the body, outside of any event (base64: true when
//	           they are encoded); wire: true puts them on the socket below HTTP
//	           and closes it.
//	framing    {newline, chop}: the line end of events ("\n", "\r\n", "\r"), and
//	           the size in bytes of the pieces in which events are written. Holds
//	           for the whole answer.
//
// "after": n beside cut, stall, hold, comment, garbage or error makes that step
// happen once n events have been sent (0: right after the headers), wherever it
// stands. Events are what a reader of the stream sees: comments do not count,
// the closing [DONE] does. An answer without stream has no events; there such a
// step happens in the middle of the body.
//
// # Markers
//
// For load and benchmarks a prompt can say by itself what it wants, without any
// state in the server: mock=ITEM[,ITEM…][#ID] in the newest user text that has a
// marker, with the items
//
//	text:N[:DELAYMS]   N text deltas, DELAYMS apart
//	tools:N[:DELAYMS]  N turns that each call bash {"command":"echo step-I"},
//	                   then a text, whose deltas are DELAYMS apart
//	sleep[:S]          one turn that calls bash with sleep S (60), then a text
//	sh:BASE64          one turn that calls bash with that command, then a text
//	ttfb:MS            waits before the first byte of each answer
//	429:K, 500:K       the first K requests with this marker get that status
//	drop:K             the first K requests with this marker are cut half way
//
// Which turn it is follows from the tool results after the marked prompt. #ID
// keeps the fault counts of equal markers apart. Each delta starts with "@", the
// wall clock in microseconds and its number of how many, as in "@1700000000000000
// 3/50", so that a client can measure its delay and knows what is missing. A
// server without any script answers unmarked requests as mock=text:1.
//
// # Strict
//
// Unless Lenient is set, a request that the real provider would refuse is
// answered 400 in the provider's shape and recorded as a [Violation] with a
// readable reason: the tool calls and results of the history must match one to
// one and stand where they belong, no text may be blank, ids and names must fit,
// thinking must come back byte for byte as this server issued it, and more; the
// rules are the Rule constants. Where providers differ in how much they
// tolerate, the strict side was taken.
//
// # Control
//
// Other processes drive the server by HTTP on the same port:
//
//	GET  /_mock/requests              what was received (?n=2: the second)
//	GET  /_mock/violations            what was wrong with it
//	GET  /_mock/stats                 totals
//	POST /_mock/script[?name=N]       replaces all scripts, or one
//	POST /_mock/reset                 forgets requests, violations and counts
//	GET  /_mock/wait?name=N           waits until a request stands at that hold
//	GET  /_mock/wait?requests=N       waits until N requests have arrived
//	GET  /_mock/wait?idle=1           waits until no request is being answered
//	POST /_mock/release?name=N        lets go what stands at that hold
//
// The waits give up with 504 after timeout=SECONDS (30).
package mockmodel
