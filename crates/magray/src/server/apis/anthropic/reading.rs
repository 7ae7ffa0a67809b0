//! Requests of Anthropic's API as jobs.
//! Refuses images and documents; tools of the provider itself are passed over.

use magray_chat::{Call, Conversation, Message, Role, Tool};
use magray_engine::decoder::Sampling;
use serde_json::Value;

use crate::{
    generation::{Job, JobInput, TokensMax, ToolChoice, new_seed},
    server::{
        app::App,
        chats::chat_input,
        errors::Problem,
        requests::anthropic::{Block, Blocks, InputMessage, MessagesRequest, ToolChoiceField, ToolDefinition},
    },
};

pub(super) fn read_messages(app: &App, request: MessagesRequest) -> Result<Job, Problem> {
    let model = app.generator(request.model.as_deref())?;
    let mut messages = Vec::new();
    if let Some(system) = request.system.map(read_system).transpose()?.filter(|system| !system.is_empty()) {
        messages.push(Message::new(Role::System, system));
    }
    if request.messages.is_empty() {
        return Err(Problem::invalid("messages", "there is no message to answer"));
    }
    for message in request.messages {
        read_message(message, &mut messages)?;
    }
    let tools = request.tools.unwrap_or_default().into_iter().filter_map(read_tool).collect();
    let thinks = request.thinking.map(|thinking| thinking.r#type != "disabled");
    let one_call = request.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    let choice = request.tool_choice.map(read_choice).transpose()?.unwrap_or_default();
    // The assistant's message at the end is the beginning of the answer.
    let continues = messages.last().is_some_and(|last| last.role == Role::Assistant && last.calls.is_empty());
    let mut input = chat_input(Conversation { messages, tools, thinks, ..Conversation::default() }, choice)?;
    input.has_one_call = one_call.unwrap_or(false);
    input.continues = continues;
    let usual = Sampling::default();
    let sampling = Sampling {
        temperature: request.temperature.unwrap_or(1.0),
        top_k: u32::try_from(request.top_k.unwrap_or(0).max(0)).unwrap_or(u32::MAX),
        top_p: request.top_p.unwrap_or(usual.top_p),
        seed: new_seed(),
        ..usual
    };
    Ok(Job {
        model,
        input: JobInput::Chat(Box::new(input)),
        sampling,
        stops: request.stop_sequences.unwrap_or_default(),
        answers: 1,
        tokens_max: request.max_tokens.map_or(TokensMax::Usual, TokensMax::Exactly),
    })
}

fn read_system(system: Blocks) -> Result<String, Problem> {
    match system {
        Blocks::Text(text) => Ok(text),
        Blocks::Several(blocks) => {
            let texts = blocks.into_iter().map(|block| match block.r#type.as_str() {
                "text" => Ok(block.text.unwrap_or_default()),
                other => Err(unread("system", other)),
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
    }
}

/// One message may be several: results of tools are messages of their own.
fn read_message(message: InputMessage, all: &mut Vec<Message>) -> Result<(), Problem> {
    let role = match message.role.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        _ => return Err(Problem::invalid("messages", "a role is user or assistant")),
    };
    let blocks = match message.content {
        Blocks::Text(text) => {
            all.push(Message::new(role, text));
            return Ok(());
        }
        Blocks::Several(blocks) => blocks,
    };
    let mut own = Message::new(role, "");
    let (mut texts, mut thoughts, mut has_results) = (Vec::new(), Vec::new(), false);
    for block in blocks {
        match block.r#type.as_str() {
            "text" => texts.extend(block.text),
            "thinking" => thoughts.extend(block.thinking),
            "redacted_thinking" => {}
            "tool_use" => own.calls.push(read_call(block)?),
            "tool_result" => {
                has_results = true;
                all.push(read_result(block)?);
            }
            other => return Err(unread("messages", other)),
        }
    }
    own.content = texts.join("\n");
    own.thinking = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
    if !has_results || !own.content.is_empty() {
        all.push(own);
    }
    Ok(())
}

fn read_call(block: Block) -> Result<Call, Problem> {
    let name = block.name.ok_or_else(|| Problem::invalid("messages", "a block of type tool_use has a name"))?;
    let arguments = block.input.map_or_else(|| "{}".to_owned(), |input| input.to_string());
    Ok(Call { id: block.id.unwrap_or_default(), name, arguments })
}

fn read_result(block: Block) -> Result<Message, Problem> {
    let content = match block.content {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(blocks)) => {
            let text = |block: &Value| match block["type"].as_str() {
                Some("text") => Ok(block["text"].as_str().unwrap_or_default().to_owned()),
                other => Err(unread("messages", other.unwrap_or("a block without a type"))),
            };
            blocks.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        Some(_) => return Err(Problem::invalid("messages", "the content of a tool_result is a text or blocks")),
    };
    Ok(Message { call_id: block.tool_use_id, ..Message::new(Role::Tool, content) })
}

fn unread(param: &'static str, kind: &str) -> Problem {
    let shown: String = kind.chars().take(100).collect();
    Problem::invalid(param, format!("blocks are texts, thoughts, calls and their results; '{shown}' is not read here"))
}

/// `None` for a tool that only the provider has.
fn read_tool(tool: ToolDefinition) -> Option<Tool> {
    let is_own = tool.r#type.as_deref().is_none_or(|kind| kind == "custom");
    let parameters = tool.input_schema.unwrap_or(Value::Null);
    is_own.then_some(Tool { name: tool.name, description: tool.description, parameters })
}

fn read_choice(choice: ToolChoiceField) -> Result<ToolChoice, Problem> {
    match (choice.r#type.as_str(), choice.name) {
        ("auto", _) => Ok(ToolChoice::Auto),
        ("none", _) => Ok(ToolChoice::Never),
        ("any", _) => Ok(ToolChoice::Required),
        ("tool", Some(name)) => Ok(ToolChoice::Named(name)),
        _ => Err(Problem::invalid("tool_choice", "tool_choice is of the type auto, any, none, or tool with a name")),
    }
}
