//! What the chat APIs have in common: messages, tools and formats become a job, ids of what is made.
//! Knows the JSON of none of them.

use std::time::{SystemTime, UNIX_EPOCH};

use magray_chat::{Conversation, Tool};
use magray_engine::decoder::Constraint;
use serde_json::Value;

use super::{app::App, errors::Problem, models::Does};
use crate::generation::{ChatInput, ToolChoice, new_seed};

/// More messages and tools than any conversation has.
const MESSAGES_MAX: usize = 1 << 14;
const TOOLS_MAX: usize = 1 << 10;

impl App {
    /// The model of this name, or the first that generates. One that does not is refused.
    pub(crate) fn generator(&self, name: Option<&str>) -> Result<usize, Problem> {
        let model = self.models().find(name, Does::Generate)?;
        match self.models().get(model).does {
            Does::Generate => Ok(model),
            Does::Embed | Does::Rank | Does::Classify => {
                Err(Problem::invalid("model", "this model generates no text: use a language model"))
            }
        }
    }
}

/// A conversation, checked, as the input of a job.
pub(crate) fn chat_input(conversation: Conversation, choice: ToolChoice) -> Result<ChatInput, Problem> {
    let (messages, tools) = (conversation.messages.len(), conversation.tools.len());
    if messages == 0 {
        return Err(Problem::invalid("messages", "there is no message to answer"));
    }
    if messages > MESSAGES_MAX {
        return Err(Problem::too_large("messages", format!("{messages} messages; {MESSAGES_MAX} are allowed")));
    }
    if tools > TOOLS_MAX {
        return Err(Problem::too_large("tools", format!("{tools} tools; {TOOLS_MAX} are allowed")));
    }
    for tool in &conversation.tools {
        check_tool(tool)?;
    }
    Ok(ChatInput { conversation, choice, now: now_s() as i64, splits_thinking: true, ..ChatInput::default() })
}

fn check_tool(tool: &Tool) -> Result<(), Problem> {
    const NAME_BYTES_MAX: usize = 256;
    let is_name = |name: &str| {
        let is_part = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_part)
    };
    if !is_name(&tool.name) {
        let shown: String = tool.name.chars().take(100).collect();
        let message = format!("'{shown}' is no name of a tool: letters, digits, _ and -, 1 to {NAME_BYTES_MAX} bytes");
        return Err(Problem::invalid("tools", message));
    }
    match &tool.parameters {
        Value::Object(_) | Value::Null => Ok(()),
        _ => {
            let message = format!("the parameters of the tool '{}' are a JSON schema, which is an object", tool.name);
            Err(Problem::invalid("tools", message))
        }
    }
}

/// JSON of a schema; without one, any object.
pub(crate) fn json_constraint(schema: Option<&Value>) -> Constraint {
    Constraint::JsonSchema(schema.map_or_else(|| r#"{"type":"object"}"#.to_owned(), Value::to_string))
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What the ids of an answer and of its parts are made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerId(u64);

impl AnswerId {
    pub(crate) fn new() -> Self {
        Self(new_seed())
    }

    /// The id of the whole.
    pub(crate) fn whole(self, prefix: &str) -> String {
        format!("{prefix}{:016x}", self.0)
    }

    /// The id of a part of one of several answers.
    pub(crate) fn part(self, prefix: &str, answer: usize, part: usize) -> String {
        // Odd multipliers keep different numbers apart.
        let number = self.0 ^ (answer as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{prefix}{:016x}{part:08x}", number)
    }
}

#[cfg(test)]
mod tests {
    use magray_chat::{Message, Role};
    use serde_json::json;

    use super::*;

    fn tool(name: &str, parameters: Value) -> Conversation {
        let tools = vec![Tool { name: name.to_owned(), description: None, parameters }];
        Conversation { messages: vec![Message::new(Role::User, "hi")], tools, ..Conversation::default() }
    }

    #[test]
    fn wrong_tools_and_empty_conversations_are_refused() {
        let refused = |conversation| chat_input(conversation, ToolChoice::Auto).unwrap_err().message;
        assert!(chat_input(tool("get_weather", json!({})), ToolChoice::Auto).is_ok());
        assert!(refused(Conversation::default()).contains("no message"));
        assert!(refused(tool("", json!({}))).contains("no name of a tool"));
        assert!(refused(tool("a b", json!({}))).contains("no name of a tool"));
        assert!(refused(tool("a", json!([1]))).contains("is an object"));
        let many = Conversation { tools: vec![tool("a", json!({})).tools.remove(0); 2000], ..tool("a", json!({})) };
        assert!(refused(many).contains("2000 tools"));
    }

    #[test]
    fn ids_of_parts_differ() {
        let id = AnswerId::new();
        assert_ne!(id.part("call_", 0, 0), id.part("call_", 0, 1));
        assert_ne!(id.part("call_", 0, 0), id.part("call_", 1, 0));
        assert!(id.whole("chatcmpl-").starts_with("chatcmpl-"));
    }
}
