//! Whether the members of a body leave it to the tokens produced so far how the rest of an answer goes on.

use super::Members;
use memchr::memmem::find;

/// Members that shape the rest of an answer as they did its beginning.
#[rustfmt::skip]
const CARRIED: [&str; 24] = [
    "model", "stream", "stream_options", "return_token_ids", "user", "priority", "session_id", "cache_salt",
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words",
    "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
    "spaces_between_special_tokens", "vllm_xargs", "stream_interval",
];
/// Members that shaped the prompt, which is known as ids now; and token limits, which are set anew.
#[rustfmt::skip]
const SPENT: [&str; 19] = [
    "messages", "prompt", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort",
    "add_generation_prompt", "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "mm_processor_kwargs",
    "media_io_kwargs", "parallel_tool_calls", "include_reasoning", "max_tokens", "max_completion_tokens",
    "min_tokens", "prompt_cache_key", "prompt_cache_retention",
];
/// Members that are harmless with these values, which equal their absence.
const NEUTRAL: [(&str, &[&str]); 13] = [
    ("n", &["1"]),
    ("best_of", &["1"]),
    ("echo", &["false"]),
    ("use_beam_search", &["false"]),
    ("logprobs", &["false"]),
    ("top_logprobs", &["0"]),
    ("tools", &["[]"]),
    ("tool_choice", &["\"none\""]),
    ("response_format", &["{\"type\":\"text\"}", "{\"type\": \"text\"}"]),
    ("frequency_penalty", &["0", "0.0"]),
    ("presence_penalty", &["0", "0.0"]),
    ("length_penalty", &["1", "1.0"]),
    ("cache_hit_threshold", &["0", "0.0"]), // above 0 the caller wants to get a refusal
];

/// Whether another worker can go on from the tokens alone; `gated`: the gateway acts on the threshold itself.
#[must_use]
pub fn is_plain(fields: &Members, gated: bool) -> bool {
    let running = fields.get("stream_options").is_some_and(|value| find(value, b"continuous_usage_stats").is_some());
    let harmless = |name: &str, value: &[u8]| {
        CARRIED.contains(&name)
            || SPENT.contains(&name)
            || value == b"null"
            || gated && name == "cache_hit_threshold"
            || NEUTRAL.iter().any(|(own, values)| *own == name && values.iter().any(|one| one.as_bytes() == value))
    };
    !running && fields.0.iter().all(|(name, value)| harmless(name, value))
}
