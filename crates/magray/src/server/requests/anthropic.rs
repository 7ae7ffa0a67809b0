//! What Anthropic's clients send.
//! Fields that are not named here have no meaning and are passed over.

use serde::Deserialize;
use serde_json::Value;

use super::collection_field::CollectionField;

/// A conversation to go on with.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = MessagesRequest)]
pub(crate) struct MessagesRequest {
    /// A model of `/v1/models` or one of its aliases; without it, the first that generates.
    pub(crate) model: Option<String>,
    #[schema(min_items = 1)]
    pub(crate) messages: Vec<InputMessage>,
    /// Tokens of the answer at most; without it, up to 4,096 or what the context leaves.
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<u32>,
    /// Instructions: a text, or blocks of text.
    pub(crate) system: Option<Blocks>,
    /// Texts before which the answer ends.
    pub(crate) stop_sequences: Option<Vec<String>>,
    /// Send the answer as it comes.
    pub(crate) stream: Option<bool>,
    /// Draws tokens, the likelier the lower; 0 takes the likeliest. Without it, 1.
    #[schema(minimum = 0, maximum = 100)]
    pub(crate) temperature: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    /// Functions that the model may call.
    pub(crate) tools: Option<Vec<ToolDefinition>>,
    pub(crate) tool_choice: Option<ToolChoiceField>,
    pub(crate) thinking: Option<Thinking>,
    /// Answer from the passages of this collection that fit the last question best, and cite them.
    pub(crate) magray_collection: Option<CollectionField>,
}

/// A message of a conversation.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = InputMessage)]
pub(crate) struct InputMessage {
    /// `user` or `assistant`.
    pub(crate) role: String,
    pub(crate) content: Blocks,
}

/// A text, or blocks.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = Blocks)]
#[serde(untagged)]
pub(crate) enum Blocks {
    Text(String),
    Several(Vec<Block>),
}

/// A part of a message; images and documents are not read.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ContentBlock)]
pub(crate) struct Block {
    /// `text`, `thinking`, `tool_use` or `tool_result`.
    pub(crate) r#type: String,
    pub(crate) text: Option<String>,
    pub(crate) thinking: Option<String>,
    /// Of a call.
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub(crate) input: Option<Value>,
    /// The call that a result answers.
    pub(crate) tool_use_id: Option<String>,
    /// Of a result: a text, or blocks of text.
    #[schema(value_type = Option<String>)]
    pub(crate) content: Option<Value>,
}

/// A function that a model may call.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = MessagesTool)]
pub(crate) struct ToolDefinition {
    /// `custom`; tools of other types are those of a provider, and are passed over.
    pub(crate) r#type: Option<String>,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// A JSON schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) input_schema: Option<Value>,
}

/// Whether the model calls tools.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = MessagesToolChoice)]
pub(crate) struct ToolChoiceField {
    /// `auto`, `any`, `tool` or `none`.
    pub(crate) r#type: String,
    /// The tool, with `tool`.
    pub(crate) name: Option<String>,
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

/// Whether the model thinks before it answers.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = MessagesThinking)]
pub(crate) struct Thinking {
    /// `enabled`, `adaptive` or `disabled`.
    pub(crate) r#type: String,
}
