package metrics

import "codework/messages"

// eventTypes are the events that sessions and plugins tell; those that plugins
// think of count as other.
var eventTypes = []string{
	messages.EventExecutionStarted, messages.EventExecutionSucceeded, messages.EventExecutionFailed, messages.EventExecutionInterrupted,
	messages.EventPromptAdmitted, messages.EventPromptPromoted, messages.EventPromptRemoved,
	messages.EventTurnStarted, messages.EventTurnEnded, messages.EventTurnAborted,
	messages.EventLLMStarted, messages.EventLLMTextStart, messages.EventLLMTextDelta, messages.EventLLMTextEnd,
	messages.EventLLMThinkingStart, messages.EventLLMThinkingDelta, messages.EventLLMThinkingEnd,
	messages.EventLLMCallStart, messages.EventLLMCallDelta, messages.EventLLMCallEnd, messages.EventLLMEnded, messages.EventLLMFailed,
	messages.EventToolStarted, messages.EventToolProgress, messages.EventToolSettled,
	messages.EventForked, messages.EventRetryScheduled, messages.EventSessionUpdated, messages.EventNotice, messages.EventPluginUpdated,
}

// failureTypes are those that the program itself tells apart; the vocabulary is
// open to plugins.
var failureTypes = []string{
	messages.FailCatalog, messages.FailModelNotFound, messages.FailStream, messages.FailContextDecode, messages.FailContextEncode,
	messages.FailSessionNotFound, messages.FailSettings, messages.FailStateSnapshot, messages.FailSandboxMount,
	messages.FailSandboxDirectory, messages.FailSandboxFiles, messages.FailUnknown, messages.FailInternal, messages.FailCrashLoop,
	messages.FailAuthentication, messages.FailAuthorization, messages.FailConfiguration, messages.FailModelUnavailable,
	messages.FailRateLimit, messages.FailQuota, messages.FailInvalidRequest, messages.FailContentFilter, messages.FailTimeout,
	messages.FailTransport, messages.FailUnavailable, messages.FailInvalidResponse, messages.FailProviderUnknown,
}

// toolNames are the tools of the program. Models make names up, and plugins
// choose their own: those are other.
var toolNames = []string{"bash", "edit", "find", "grep", "ls", "read", "write"}

// callStates are the states in which a call has its result.
var callStates = []string{
	string(messages.CallCompleted), string(messages.CallError), string(messages.CallSkipped), string(messages.CallAborted),
}
