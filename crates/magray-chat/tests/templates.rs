//! Renders every template of the fixtures with every conversation, and compares with what Python's jinja2 made of them.
//! Prompts that we change on purpose (tools and instructions that a template has no place for) are tested beside the code.

use magray_chat::{Call, ChatTemplate, Conversation, Message, Opening, Role, TemplateError, TemplateSources, Tool};
use serde_json::Value;
use std::path::Path;

#[test]
fn prompts_are_those_of_python() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let text = std::fs::read_to_string(folder.join("templates.json")).expect("a fixture");
    let fixtures: Value = serde_json::from_str(&text).expect("JSON");
    let mut compared = 0;
    for (family, cases) in fixtures["rendered"].as_object().expect("a map") {
        let source = std::fs::read_to_string(folder.join(format!("templates/{family}.jinja"))).expect("a template");
        let template = ChatTemplate::compile(&sources(&source, &fixtures["tokens"])).expect("it compiles");
        for (name, case) in cases.as_object().expect("a map") {
            let (conversation, is_open) = conversation(&fixtures["conversations"][name]);
            let has_calls = !conversation.tools.is_empty();
            let is_instructed = conversation.messages[0].role == Role::System;
            // These we render another way than the template alone would.
            if !is_open || (has_calls && !template.reads_tools()) || (is_instructed && family == "gemma") {
                continue;
            }
            let opening = Opening { now: fixtures["now"].as_i64().expect("a number"), continues: false };
            match (template.render(&conversation, &opening), &case["refused"]) {
                (Ok(prompt), Value::Null) => assert_eq!(prompt, case["prompt"], "{family} {name}"),
                (Err(TemplateError::Refused(why)), refused) => assert_eq!(why, *refused, "{family} {name}"),
                (other, _) => panic!("{family} {name}: {other:?}"),
            }
            compared += 1;
        }
    }
    assert!(compared >= 40, "only {compared} prompts were compared");
}

#[test]
fn a_message_is_continued_where_its_text_ends() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}";
    let template = ChatTemplate::compile(&sources(source, &Value::Null)).expect("it compiles");
    let messages = vec![Message::new(Role::User, "One?"), Message::new(Role::Assistant, "Two, ")];
    let mut conversation = Conversation { messages, ..Conversation::default() };
    let opening = Opening { continues: true, ..Opening::default() };
    assert_eq!(template.render(&conversation, &opening).expect("it renders"), "<user>One?</user><assistant>Two,");
    conversation.messages.pop();
    assert_eq!(template.render(&conversation, &opening), Err(TemplateError::NothingToContinue));
}

fn sources(source: &str, tokens: &Value) -> TemplateSources {
    let token = |name: &str| tokens[name].as_str().map(str::to_owned);
    TemplateSources {
        default: Some(source.to_owned()),
        bos: token("bos_token"),
        eos: token("eos_token"),
        ..TemplateSources::default()
    }
}

/// The conversation, and whether the assistant is to speak next.
fn conversation(json: &Value) -> (Conversation, bool) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let messages = list(&json["messages"]).into_iter().map(|message| Message {
        role: Role::from_name(message["role"].as_str().expect("a role")).expect("a known role"),
        content: text(&message["content"]).expect("a text"),
        thinking: text(&message["reasoning_content"]),
        calls: list(&message["tool_calls"])
            .iter()
            .map(|call| Call {
                id: text(&call["id"]).expect("an id"),
                name: text(&call["function"]["name"]).expect("a name"),
                arguments: call["function"]["arguments"].to_string(),
            })
            .collect(),
        call_id: text(&message["tool_call_id"]),
        name: None,
    });
    let tools = list(&json["tools"])
        .iter()
        .map(|tool| Tool {
            name: text(&tool["function"]["name"]).expect("a name"),
            description: text(&tool["function"]["description"]),
            parameters: tool["function"]["parameters"].clone(),
        })
        .collect();
    let conversation = Conversation {
        messages: messages.collect(),
        tools,
        thinks: json["enable_thinking"].as_bool(),
        ..Conversation::default()
    };
    (conversation, json["add_generation_prompt"].as_bool().unwrap_or(true))
}
