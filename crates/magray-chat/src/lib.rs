//! Text work of a chat: templates that turn messages into a prompt, and what the text of an answer means.
//! No IO, no clock, no models, no HTTP.

#![forbid(unsafe_code)]

mod answer;
mod calls;
mod conversation;
mod date;
mod described_tools;
mod format;
mod generation_tags;
mod json_span;
mod python_json;
mod template;

pub use answer::{AnswerReader, Part};
pub use conversation::{Call, Conversation, Message, Role, Tool};
pub use format::{AnswerFormat, ForcedCall};
pub use template::{ChatTemplate, Opening, TemplateError, TemplateSources};
