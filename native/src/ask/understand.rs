//! A client's body to what routing needs to know of it.
//!
//! A body is parsed once, one level deep: every value that the client sent stays the bytes it was. Removed is what only
//! the control plane may set: tenancy, transfers between workers, ranks.

use super::media::holds_media;
use super::retention::{add_retention, cache_key, sanitise_arguments};
use super::values::{count, inputs, lax_bool, lists_prompts, number, number_or_text, prompts, text};
use super::{Endpoint, Fault, Members};
use bytes::Bytes;

/// vLLM's `max_tokens` for a completion without one.
const COMPLETIONS_MAX_TOKENS: i64 = 16;
/// Assumed for other answers without a bound; decisions count no more than that anyway.
const CHAT_MAX_TOKENS: i64 = 256;
/// Choices of each prompt that may be asked for.
pub const MAX_CHOICES: u8 = 8;
/// Choices of all prompts of one request: an engine computes as many answers.
pub const MAX_SEQUENCES: usize = 128;
/// Texts of one request of a pooling model.
pub const MAX_INPUTS: usize = 2048;
const THRESHOLD: &str = "cache_hit_threshold";
const WHOLE: &str = "responses are not stored here. Send the whole conversation as `input`.";

const PRIVATE: [&str; 5] =
    ["cache_salt", "kv_transfer_params", "ec_transfer_params", "mm_payload", "data_parallel_rank"];
/// Only the API of token ids takes them from clients.
const OF_COMPLETIONS: [&str; 3] = ["prompt_cache_ref", "append_token_ids", "return_prompt_cache_ref"];
/// An engine orders requests, names them and finds their sessions by these: only a trusted tenant may say them.
const OF_TRUSTED: [&str; 3] = ["priority", "request_id", "session_id"];

/// What a body says; the defaults are those of an API where the client gets all that the gateway asks for.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of a body")]
pub struct Facts {
    pub model: String,
    /// Members of the client's own body.
    pub size: usize,
    pub stream: bool,
    pub usage_asked: bool,
    pub ids_asked: bool,
    pub ids_wanted: bool,
    pub single: bool,
    pub max_tokens: i64,
    pub media: bool,
    pub threshold: Option<f64>,
    pub choices: usize,
    pub prompts: usize,
    pub cache_key: String,
    /// Whether the engine looks for the prompt in its prefix cache: not where it tells the prompt's own logprobs.
    pub reads_cache: bool,
    pub echo: bool,
}

/// What a body says, and the members of it that a worker may see; `trusted` keeps what only a trusted tenant may say.
///
/// # Errors
/// It is no JSON object, or asks for what no worker is asked.
pub fn understand(body: &Bytes, endpoint: Endpoint, trusted: bool) -> Result<(Members, Facts), Fault> {
    let mut fields = Members::parse(body)?;
    let size = fields.0.len();
    fields.keep(|name| {
        !PRIVATE.contains(&name)
            && (trusted || !OF_TRUSTED.contains(&name))
            && (endpoint == Endpoint::Completions || !OF_COMPLETIONS.contains(&name))
    });
    sanitise_arguments(&mut fields)?;
    add_retention(&mut fields, endpoint)?;
    let model = text(&fields, "model")?;
    let facts = facts_of(&fields, endpoint, model, size)?;
    Ok((fields, facts))
}

fn facts_of(fields: &Members, endpoint: Endpoint, model: String, size: usize) -> Result<Facts, Fault> {
    let is = |name: &str| lax_bool(fields.get(name).map(|value| &value[..]));
    if endpoint == Endpoint::Responses {
        refuse_state(fields, is("background"))?;
    }
    let told = fields.given("prompt_logprobs").or_else(|| fields.given("prompt_logprob_token_ids")).is_some();
    let echo = is("echo");
    let mut facts = Facts {
        model,
        size,
        stream: is("stream") && (endpoint.generates() || endpoint.hears()),
        usage_asked: !endpoint.hears() || is("stream_include_usage"),
        ids_asked: false,
        ids_wanted: false,
        single: true,
        max_tokens: max_tokens(fields, endpoint),
        media: media(fields, endpoint),
        threshold: None,
        choices: 1,
        prompts: 1,
        cache_key: String::new(),
        reads_cache: !told && !echo,
        echo,
    };
    if endpoint.completes() {
        facts.choices = choices(fields, "n")?.max(choices(fields, "best_of")?);
        facts.usage_asked = usage_asked(fields)?;
        facts.ids_asked = is("return_token_ids");
        facts.ids_wanted = !echo && !facts.ids_asked;
        facts.single = facts.choices == 1 && !fields.get("prompt").is_some_and(|prompt| lists_prompts(prompt));
        facts.threshold = threshold(fields)?;
    }
    facts.prompts = prompts_of(fields, endpoint, facts.choices)?;
    facts.cache_key = cache_key(fields, endpoint)?;
    Ok(facts)
}

fn max_tokens(fields: &Members, endpoint: Endpoint) -> i64 {
    let first = |names: &[&str]| names.iter().find_map(|name| count(fields.get(name).map(|value| &value[..])));
    match endpoint {
        Endpoint::Chat => first(&["max_completion_tokens", "max_tokens"]).unwrap_or(CHAT_MAX_TOKENS),
        Endpoint::Completions => first(&["max_tokens"]).unwrap_or(COMPLETIONS_MAX_TOKENS),
        Endpoint::Responses => first(&["max_output_tokens"]).unwrap_or(CHAT_MAX_TOKENS),
        Endpoint::Messages => first(&["max_tokens"]).unwrap_or(CHAT_MAX_TOKENS),
        Endpoint::Transcriptions | Endpoint::Translations => CHAT_MAX_TOKENS,
        _ => 1,
    }
}

fn media(fields: &Members, endpoint: Endpoint) -> bool {
    match endpoint {
        Endpoint::Chat | Endpoint::Messages => holds_media(fields.get("messages").map(|value| &value[..])),
        Endpoint::Responses => holds_media(fields.get("input").map(|value| &value[..])),
        Endpoint::Completions => fields.given("prompt_embeds").is_some(),
        _ => false,
    }
}

fn refuse_state(fields: &Members, background: bool) -> Result<(), Fault> {
    if fields.given("conversation").is_some() {
        return Err(Fault::member("conversation", format!("`conversation` is not supported: {WHOLE}")));
    }
    if background {
        let message = "`background` is not supported: responses are not stored here.";
        return Err(Fault::member("background", message));
    }
    Ok(())
}

/// How many choices of each prompt one member asks for.
fn choices(fields: &Members, name: &'static str) -> Result<usize, Fault> {
    let Some(asked) = fields.given(name).and_then(|value| number_or_text(value)) else { return Ok(1) };
    if asked.is_nan() || asked > f64::from(MAX_CHOICES) {
        return Err(Fault::member(name, format!("`{name}` must be a whole number from 1 to {MAX_CHOICES}.")));
    }
    let whole = (2..=MAX_CHOICES).rev().find(|choices| asked >= f64::from(*choices));
    Ok(whole.map_or(1, usize::from)) // the engine refuses what is below 1
}

fn usage_asked(fields: &Members) -> Result<bool, Fault> {
    let options = fields.get("stream_options").map_or(Ok(None), Members::of)?;
    Ok(options.is_some_and(|options| lax_bool(options.get("include_usage").map(|value| &value[..]))))
}

/// The threshold in a body, else in its `vllm_xargs`.
fn threshold(fields: &Members) -> Result<Option<f64>, Fault> {
    let nested = fields.given("vllm_xargs").map_or(Ok(None), Members::of)?.unwrap_or_default();
    let mut first = None;
    for value in [fields, &nested].iter().filter_map(|part| part.given(THRESHOLD)) {
        let refused = || format!("Parameter `{THRESHOLD}` must be between 0.0 and 1.0 if provided.");
        let number = number(value).filter(|number| (0.0..=1.0).contains(number));
        first = first.or(Some(number.ok_or_else(|| Fault::member(THRESHOLD, refused()))?));
    }
    Ok(first)
}

fn prompts_of(fields: &Members, endpoint: Endpoint, choices: usize) -> Result<usize, Fault> {
    if endpoint != Endpoint::Completions {
        let lists = endpoint.inputs().iter().filter_map(|name| Some((*name, fields.given(name)?)));
        let mut bounded = lists.map(|(name, list)| within_bounds(inputs(list), 1, MAX_INPUTS, name));
        return bounded.try_fold(1, |most, list| Ok(most.max(list?)));
    }
    let mut sum = 0;
    for name in ["prompt", "prompt_embeds"] {
        if let Some(value) = fields.given(name) {
            sum += within_bounds(prompts(value), choices, MAX_SEQUENCES, name)?;
        }
    }
    within_bounds(sum.max(1), choices, MAX_SEQUENCES, "prompt")
}

/// The number of prompts, which the member `name` lists.
fn within_bounds(prompts: usize, choices: usize, most: usize, name: &'static str) -> Result<usize, Fault> {
    if prompts * choices <= most {
        return Ok(prompts);
    }
    let each = format!(", and with {choices} choices of each {}", most / choices);
    let each = if choices > 1 { &each } else { "" };
    Err(Fault::member(name, format!("`{name}` may have from 1 to {most} items{each}; it has {prompts}.")))
}
