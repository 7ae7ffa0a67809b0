//! A conversation as every API means it: messages, tools, calls.
//! Knows no API's JSON and no template.

use serde_json::{Map, Value};

/// What a model is asked to go on with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// From the oldest to the newest.
    pub messages: Vec<Message>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Whether a model that can think first shall; `None` leaves it to the template.
    pub thinks: Option<bool>,
    /// More variables for the template (`chat_template_kwargs`).
    pub extra: Map<String, Value>,
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; empty where an assistant only called tools.
    pub content: String,
    /// What an assistant thought before it answered.
    pub thinking: Option<String>,
    /// Calls that an assistant made.
    pub calls: Vec<Call>,
    /// The call that a tool's message answers.
    pub call_id: Option<String>,
    /// The name of a speaker or of a tool.
    pub name: Option<String>,
}

impl Message {
    /// A message that is only text.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), thinking: None, calls: Vec::new(), call_id: None, name: None }
    }
}

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions; "developer" is read as this.
    System,
    /// A person.
    User,
    /// The model.
    Assistant,
    /// The result of a call.
    Tool,
}

impl Role {
    /// The word that templates and APIs use.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// The role of a word, `None` for one that is not known.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "system" | "developer" => Some(Self::System),
            "user" => Some(Self::User),
            "assistant" => Some(Self::Assistant),
            "tool" | "function" => Some(Self::Tool),
            _ => None,
        }
    }
}

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    pub parameters: Value,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What its result refers to.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON text, normally of an object.
    pub arguments: String,
}
