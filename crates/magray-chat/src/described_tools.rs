//! Tools for models whose template has no place for them: described in the system message, calls and results as text.
//! Uses the marks of Hermes, which most models have seen.

use crate::conversation::{Conversation, Message, Role, Tool};
use crate::python_json::{self, Layout};
use serde_json::{Value, json};

/// The same conversation without tools, calls and results of tools.
pub(crate) fn as_text(conversation: &Conversation) -> Conversation {
    let mut messages: Vec<Message> = Vec::with_capacity(conversation.messages.len() + 1);
    for message in &conversation.messages {
        match message.role {
            Role::Tool => {
                let result = format!("<tool_response>\n{}\n</tool_response>", message.content);
                match messages.last_mut() {
                    // Results of parallel calls are one message: many templates want users and assistants in turn.
                    Some(last) if last.role == Role::User && last.content.ends_with("</tool_response>") => {
                        last.content.push('\n');
                        last.content.push_str(&result);
                    }
                    _ => messages.push(Message::new(Role::User, result)),
                }
            }
            Role::Assistant if !message.calls.is_empty() => {
                let mut message = message.clone();
                for call in std::mem::take(&mut message.calls) {
                    let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::String(call.arguments));
                    let json =
                        python_json::write(&json!({"name": call.name, "arguments": arguments}), Layout::default());
                    if !message.content.is_empty() {
                        message.content.push('\n');
                    }
                    message.content.push_str(&format!("<tool_call>\n{json}\n</tool_call>"));
                }
                messages.push(message);
            }
            _ => messages.push(message.clone()),
        }
    }
    if !conversation.tools.is_empty() {
        let description = describe(&conversation.tools);
        match messages.first_mut() {
            Some(first) if first.role == Role::System => {
                first.content = format!("{}\n\n{description}", first.content);
            }
            _ => messages.insert(0, Message::new(Role::System, description)),
        }
    }
    Conversation { messages, tools: Vec::new(), thinks: conversation.thinks, extra: conversation.extra.clone() }
}

/// Moves the text of system messages into the user's message that follows, for templates that have no place for it.
pub(crate) fn merge_system(messages: Vec<Message>) -> Vec<Message> {
    let mut merged: Vec<Message> = Vec::with_capacity(messages.len());
    let mut instructions: Vec<String> = Vec::new();
    for mut message in messages {
        match message.role {
            Role::System => {
                instructions.push(message.content);
                continue;
            }
            Role::User if !instructions.is_empty() => {
                instructions.push(std::mem::take(&mut message.content));
                message.content = instructions.join("\n\n");
                instructions.clear();
            }
            _ => {}
        }
        merged.push(message);
    }
    if !instructions.is_empty() {
        merged.push(Message::new(Role::User, instructions.join("\n\n")));
    }
    merged
}

/// A tool as templates and models know it.
pub(crate) fn tool_json(tool: &Tool) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        function["description"] = json!(description);
    }
    function["parameters"] = tool.parameters.clone();
    json!({"type": "function", "function": function})
}

fn describe(tools: &[Tool]) -> String {
    let mut text =
        "You can call these functions. Each line between the tags describes one as JSON:\n<tools>".to_owned();
    for tool in tools {
        text.push('\n');
        text.push_str(&python_json::write(&tool_json(tool), Layout::default()));
    }
    text.push_str("\n</tools>\nTo call a function, write its name and arguments as JSON between tags:\n<tool_call>\n");
    text.push_str("{\"name\": \"the name\", \"arguments\": {}}\n</tool_call>");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Call;

    #[test]
    fn calls_and_results_become_text() {
        let mut asks = Message::new(Role::Assistant, "");
        asks.calls = vec![Call { id: "1".into(), name: "f".into(), arguments: "{\"x\":1}".into() }];
        let conversation = Conversation {
            messages: vec![
                Message::new(Role::User, "go"),
                asks,
                Message::new(Role::Tool, "one"),
                Message::new(Role::Tool, "two"),
            ],
            tools: vec![Tool { name: "f".into(), description: None, parameters: json!({}) }],
            ..Conversation::default()
        };
        let plain = as_text(&conversation);
        let roles: Vec<Role> = plain.messages.iter().map(|m| m.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User]);
        assert!(
            plain.messages[0].content.contains(r#"{"type": "function", "function": {"name": "f", "parameters": {}}}"#)
        );
        assert_eq!(
            plain.messages[2].content,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"
        );
        assert_eq!(
            plain.messages[3].content,
            "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
        );
    }

    #[test]
    fn instructions_go_to_the_next_user() {
        let said = [(Role::System, "a"), (Role::User, "b"), (Role::Assistant, "c"), (Role::System, "d")];
        let merged = merge_system(said.into_iter().map(|(role, text)| Message::new(role, text)).collect());
        let merged: Vec<_> = merged.into_iter().map(|m| (m.role, m.content)).collect();
        let expected = [(Role::User, "a\n\nb"), (Role::Assistant, "c"), (Role::User, "d")];
        assert_eq!(merged, expected.map(|(role, text)| (role, text.to_owned())));
    }
}
