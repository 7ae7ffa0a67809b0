//! What OpenAI's clients send for responses.
//! Fields that are not named here have no meaning and are passed over.

use serde::Deserialize;
use serde_json::Value;

use super::{collection_field::CollectionField, openai_chat::Content};

/// Something to answer.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponsesRequest)]
pub(crate) struct ResponsesRequest {
    /// A model of `/v1/models` or one of its aliases; without it, the first that generates.
    pub(crate) model: Option<String>,
    /// A text, or items: messages, calls and their results.
    pub(crate) input: Option<ResponseInput>,
    /// Put before the input.
    pub(crate) instructions: Option<String>,
    /// Tokens of the answer at most; without it, up to 4,096 or what the context leaves.
    #[schema(minimum = 1)]
    pub(crate) max_output_tokens: Option<u32>,
    /// Draws tokens, the likelier the lower; 0 takes the likeliest. Without it, 1.
    #[schema(minimum = 0, maximum = 100)]
    pub(crate) temperature: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f32>,
    /// Send the answer as it comes.
    pub(crate) stream: Option<bool>,
    /// Functions that the model may call; tools of other types are passed over.
    pub(crate) tools: Option<Vec<ResponseTool>>,
    /// `auto`, `none`, `required`, or a function by its name.
    pub(crate) tool_choice: Option<ResponseToolChoice>,
    pub(crate) parallel_tool_calls: Option<bool>,
    /// What the answer has to be.
    pub(crate) text: Option<ResponseText>,
    pub(crate) reasoning: Option<ResponseReasoning>,
    /// Answers are not kept: send the conversation with each request.
    pub(crate) previous_response_id: Option<String>,
    pub(crate) background: Option<bool>,
    /// Answer from the passages of this collection that fit the last question best, and cite them.
    pub(crate) magray_collection: Option<CollectionField>,
}

/// A text, or items.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseInput)]
#[serde(untagged)]
pub(crate) enum ResponseInput {
    Text(String),
    Items(Vec<ResponseItem>),
}

/// A message, a call, the result of one, or a thought.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseItem)]
pub(crate) struct ResponseItem {
    /// `message`, `function_call`, `function_call_output` or `reasoning`; without it, a message.
    pub(crate) r#type: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) content: Option<Content>,
    pub(crate) call_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) arguments: Option<String>,
    /// Of a call: a text, or parts of which each is a text.
    pub(crate) output: Option<Content>,
}

/// A function that a model may call.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseTool)]
pub(crate) struct ResponseTool {
    /// `function`.
    pub(crate) r#type: String,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// A JSON schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Value>,
}

/// A word, or a function.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseToolChoice)]
#[serde(untagged)]
pub(crate) enum ResponseToolChoice {
    Word(String),
    Function { name: String },
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseText)]
pub(crate) struct ResponseText {
    pub(crate) format: Option<ResponseTextFormat>,
}

/// `text`, `json_object`, or `json_schema` with a schema.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseTextFormat)]
pub(crate) struct ResponseTextFormat {
    pub(crate) r#type: String,
    #[schema(value_type = Option<Object>)]
    pub(crate) schema: Option<Value>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseReasoning)]
pub(crate) struct ResponseReasoning {
    /// `none` lets a model that thinks answer at once.
    pub(crate) effort: Option<String>,
}
