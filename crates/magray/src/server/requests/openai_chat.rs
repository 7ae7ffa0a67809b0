//! What OpenAI's clients send for chats and completions.
//! Fields that are not named here have no meaning and are passed over.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::collection_field::CollectionField;
use crate::server::inputs::Input;

/// A conversation to go on with.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ChatRequest)]
pub(crate) struct ChatRequest {
    /// A model of `/v1/models` or one of its aliases; without it, the first that generates.
    #[serde(default)]
    pub(crate) model: Option<String>,
    #[schema(min_items = 1)]
    pub(crate) messages: Vec<ChatMessage>,
    /// Functions that the model may call.
    #[serde(default)]
    pub(crate) tools: Option<Vec<ToolDefinition>>,
    /// `auto`, `none`, `required`, or a function by its name.
    #[serde(default)]
    pub(crate) tool_choice: Option<ToolChoiceField>,
    /// Where it is false, the first call ends the answer.
    #[serde(default)]
    pub(crate) parallel_tool_calls: Option<bool>,
    /// What the answer has to be.
    #[serde(default)]
    pub(crate) response_format: Option<ResponseFormat>,
    /// Tokens of an answer at most; `max_completion_tokens` is the newer name and counts first.
    #[serde(default)]
    pub(crate) max_completion_tokens: Option<u32>,
    /// Tell how likely each token was.
    #[serde(default)]
    pub(crate) logprobs: Option<bool>,
    /// The likeliest tokens in the place of each, up to 20.
    #[serde(default)]
    #[schema(maximum = 20)]
    pub(crate) top_logprobs: Option<u8>,
    /// `none` lets a model that thinks answer at once.
    #[serde(default)]
    pub(crate) reasoning_effort: Option<String>,
    /// Variables for the model's template, such as `enable_thinking`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// The last message is the beginning of the answer.
    #[serde(default)]
    pub(crate) continue_final_message: Option<bool>,
    /// Answer from the passages of this collection that fit the last question best, and cite them.
    #[serde(default)]
    pub(crate) magray_collection: Option<CollectionField>,
    #[serde(flatten)]
    pub(crate) sampling: SamplingFields,
}

/// A text to go on with.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CompletionRequest)]
pub(crate) struct CompletionRequest<'a> {
    /// A model of `/v1/models` or one of its aliases; without it, the first that generates.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    /// A text, texts, or token ids of the model.
    #[serde(borrow)]
    pub(crate) prompt: Input<'a>,
    /// Put the prompt before each answer.
    #[serde(default)]
    pub(crate) echo: Option<bool>,
    /// Tell how likely each token was, and this many of the likeliest in its place, up to 20.
    #[serde(default)]
    #[schema(maximum = 20)]
    pub(crate) logprobs: Option<u8>,
    /// What the answer has to be.
    #[serde(default)]
    pub(crate) response_format: Option<ResponseFormat>,
    #[serde(flatten)]
    pub(crate) sampling: SamplingFields,
}

/// How tokens are chosen, and how the answer is sent.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = SamplingFields)]
pub(crate) struct SamplingFields {
    /// Tokens of an answer at most; without it, up to 4,096 or what the context leaves.
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<u32>,
    /// Draws tokens, the likelier the lower; 0 takes the likeliest. Without it, 1.
    #[schema(minimum = 0, maximum = 100)]
    pub(crate) temperature: Option<f32>,
    /// Draws of the likeliest tokens that have this probability together.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f32>,
    /// Draws of this many likeliest tokens; 0: of all.
    pub(crate) top_k: Option<i64>,
    /// Draws of tokens with at least this part of the highest probability.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) min_p: Option<f32>,
    #[schema(minimum = 0.01, maximum = 100)]
    pub(crate) repetition_penalty: Option<f32>,
    #[schema(minimum = -100, maximum = 100)]
    pub(crate) frequency_penalty: Option<f32>,
    #[schema(minimum = -100, maximum = 100)]
    pub(crate) presence_penalty: Option<f32>,
    /// Tokens that are proposed for each pass from what the text has; changes no answer. Without it, `chat.speculate`.
    #[schema(maximum = 15)]
    pub(crate) speculate: Option<u8>,
    /// Added to the logits of tokens, by their ids.
    pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
    /// The same seed draws the same tokens.
    pub(crate) seed: Option<i64>,
    /// Go on behind the token that ends an answer, to as many tokens as it may have: for measurements.
    pub(crate) ignore_eos: Option<bool>,
    /// Answers to each prompt, up to 128.
    #[schema(minimum = 1, maximum = 128)]
    pub(crate) n: Option<u32>,
    /// Texts before which an answer ends.
    pub(crate) stop: Option<Stops>,
    /// Send the answer as it comes.
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
}

/// What a stream tells.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = StreamOptions)]
pub(crate) struct StreamOptions {
    /// A last event has the numbers of tokens.
    pub(crate) include_usage: Option<bool>,
}

/// One text or several.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = Stops)]
#[serde(untagged)]
pub(crate) enum Stops {
    One(String),
    Several(Vec<String>),
}

/// A message of a conversation.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ChatMessage)]
pub(crate) struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub(crate) role: String,
    #[serde(default)]
    pub(crate) content: Option<Content>,
    /// What the assistant thought.
    #[serde(default, alias = "reasoning")]
    pub(crate) reasoning_content: Option<String>,
    /// Calls that the assistant made.
    #[serde(default)]
    pub(crate) tool_calls: Option<Vec<ToolCallField>>,
    /// The call that a tool's message answers.
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
    #[serde(default)]
    pub(crate) name: Option<String>,
}

/// A text, or parts of which each is a text.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = MessageContent)]
#[serde(untagged)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message; images and sounds are not read.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ContentPart)]
pub(crate) struct ContentPart {
    /// `text`.
    pub(crate) r#type: String,
    #[serde(default)]
    pub(crate) text: Option<String>,
}

/// A function that a model may call.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ToolDefinition)]
pub(crate) struct ToolDefinition {
    /// `function`.
    #[serde(default)]
    pub(crate) r#type: Option<String>,
    pub(crate) function: FunctionDefinition,
}

/// Its name, and what it takes.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = FunctionDefinition)]
pub(crate) struct FunctionDefinition {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Value>,
}

/// A word, or a function.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ToolChoice)]
#[serde(untagged)]
pub(crate) enum ToolChoiceField {
    Word(String),
    Function { function: NamedFunction },
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = NamedFunction)]
pub(crate) struct NamedFunction {
    pub(crate) name: String,
}

/// A call that the assistant made.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ToolCall)]
pub(crate) struct ToolCallField {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) function: CalledFunction,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CalledFunction)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// JSON, as a text or as an object.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) arguments: Option<Value>,
}

/// `text`, `json_object`, or `json_schema` with a schema.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseFormat)]
pub(crate) struct ResponseFormat {
    pub(crate) r#type: String,
    #[serde(default)]
    pub(crate) json_schema: Option<NamedSchema>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = NamedSchema)]
pub(crate) struct NamedSchema {
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) schema: Option<Value>,
}
