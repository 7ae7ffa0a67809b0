//! What Ollama's clients send for chats and texts.
//! Fields that are not named here have no meaning and are passed over.

use serde::Deserialize;
use serde_json::Value;

use super::{
    collection_field::CollectionField,
    openai_chat::{Stops, ToolDefinition},
};

/// A conversation to go on with.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaChatRequest)]
pub(crate) struct ChatRequest {
    /// Without it, the first model that generates.
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// Without any, the model is loaded, or unloaded where `keep_alive` is 0.
    #[serde(default)]
    pub(crate) messages: Option<Vec<ChatMessage>>,
    /// Functions that the model may call.
    #[serde(default)]
    pub(crate) tools: Option<Vec<ToolDefinition>>,
    /// Answer from the passages of this collection that fit the last question best, and cite them.
    #[serde(default)]
    pub(crate) magray_collection: Option<CollectionField>,
    #[serde(flatten)]
    pub(crate) how: AnswerFields,
}

/// A text to go on with.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaGenerateRequest)]
pub(crate) struct GenerateRequest {
    /// Without it, the first model that generates.
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// Without any, the model is loaded, or unloaded where `keep_alive` is 0.
    #[serde(default)]
    pub(crate) prompt: Option<String>,
    /// Instructions to put before it.
    #[serde(default)]
    pub(crate) system: Option<String>,
    /// Give the prompt to the model as it is, without its chat template.
    #[serde(default)]
    pub(crate) raw: Option<bool>,
    #[serde(default)]
    pub(crate) suffix: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) images: Option<Vec<Value>>,
    #[serde(flatten)]
    pub(crate) how: AnswerFields,
}

/// How the answer is made and sent.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaAnswerFields)]
pub(crate) struct AnswerFields {
    /// Send the answer line by line, as it comes; without it, true.
    pub(crate) stream: Option<bool>,
    /// `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    pub(crate) format: Option<Value>,
    pub(crate) options: Option<Options>,
    /// Whether a model that can think first shall: true, false, or a word such as `high`.
    #[schema(value_type = Option<bool>)]
    pub(crate) think: Option<Value>,
    /// How long the model stays loaded without being used: seconds, or a text such as `5m`; below 0: for ever. Of callers that
    /// may not change anything it is passed over.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Tell how likely each token was.
    pub(crate) logprobs: Option<bool>,
    #[schema(maximum = 20)]
    pub(crate) top_logprobs: Option<u8>,
}

/// How tokens are chosen.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaOptions)]
pub(crate) struct Options {
    /// Tokens of the answer at most; below 0: as many as usual.
    pub(crate) num_predict: Option<i64>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repeat_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) seed: Option<i64>,
    /// Tokens that are proposed for each pass from what the text has; changes no answer. Without it, `chat.speculate`.
    #[schema(maximum = 15)]
    pub(crate) speculate: Option<u8>,
    pub(crate) stop: Option<Stops>,
}

/// A message of a conversation.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaMessage)]
pub(crate) struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub(crate) role: String,
    #[serde(default)]
    pub(crate) content: Option<String>,
    #[serde(default)]
    pub(crate) thinking: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) images: Option<Vec<Value>>,
    #[serde(default)]
    pub(crate) tool_calls: Option<Vec<ToolCall>>,
    /// The tool that a tool's message answers for.
    #[serde(default, alias = "name")]
    pub(crate) tool_name: Option<String>,
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
}

/// A call that the assistant made.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaToolCall)]
pub(crate) struct ToolCall {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) function: CalledFunction,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaCalledFunction)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) arguments: Option<Value>,
}

/// Seconds, or a text such as `5m`.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = KeepAlive)]
#[serde(untagged)]
pub(crate) enum KeepAlive {
    Seconds(f64),
    Text(String),
}

impl KeepAlive {
    /// Seconds; `None` inside: for ever. The outer one: it cannot be read.
    pub(crate) fn seconds(&self) -> Option<Option<f64>> {
        let seconds = match self {
            Self::Seconds(seconds) => *seconds,
            Self::Text(text) => read_duration(text.trim())?,
        };
        if !seconds.is_finite() {
            return None;
        }
        Some((seconds >= 0.0).then_some(seconds))
    }
}

/// A number of seconds, or numbers with units, such as `1h30m`.
fn read_duration(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(digits);
        let unit = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let scale = match unit {
            "ns" => 1e-9,
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = behind;
    }
    (!text.is_empty()).then_some(sign * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_ollama_reads_them() {
        let read = |text: &str| KeepAlive::Text(text.to_owned()).seconds();
        assert_eq!(read("5m"), Some(Some(300.0)));
        assert_eq!(read("1h30m"), Some(Some(5400.0)));
        assert_eq!((read("0"), read("0s")), (Some(Some(0.0)), Some(Some(0.0))));
        assert_eq!((read("-1"), read("-1m")), (Some(None), Some(None)));
        assert_eq!((read("soon"), read(""), read("5x"), read("inf")), (None, None, None, None));
        assert_eq!(KeepAlive::Seconds(-1.0).seconds(), Some(None));
    }
}
