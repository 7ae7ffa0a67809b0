//! Requests of OpenAI's responses as jobs.
//! Refuses what would need an earlier answer, images and files; tools that are no functions are passed over.

use magray_chat::{Call, Conversation, Message, Role, Tool};
use magray_engine::decoder::{Constraint, Sampling};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    generation::{Job, JobInput, TokensMax, ToolChoice, new_seed},
    server::{
        apis::openai_chat::{choice_of, read_content},
        app::App,
        body::Body,
        chats::{chat_input, json_constraint},
        errors::Problem,
        requests::responses::{
            ResponseInput, ResponseItem, ResponseText, ResponseTool, ResponseToolChoice, ResponsesRequest,
        },
    },
};

/// What the answer tells again of its request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) parallel_tool_calls: bool,
    pub(super) echoed: Echoed,
}

/// Fields that are told as they came.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Echoed {
    pub(super) tools: Option<Value>,
    pub(super) tool_choice: Option<Value>,
    pub(super) text: Option<Value>,
    pub(super) metadata: Option<Value>,
}

impl Asked {
    pub(super) fn of(request: &ResponsesRequest, body: &Body) -> Result<Self, Problem> {
        Ok(Self {
            instructions: request.instructions.clone(),
            max_output_tokens: request.max_output_tokens,
            temperature: request.temperature.unwrap_or(1.0),
            top_p: request.top_p.unwrap_or(1.0),
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            echoed: body.json()?,
        })
    }
}

pub(super) fn read_response(app: &App, request: ResponsesRequest) -> Result<Job, Problem> {
    if request.previous_response_id.is_some() {
        let message = "answers are not kept here: send the whole conversation in input";
        return Err(Problem::invalid("previous_response_id", message));
    }
    if request.background.unwrap_or(false) {
        return Err(Problem::invalid("background", "answers are given at once here: leave background out"));
    }
    let model = app.generator(request.model.as_deref())?;
    let mut messages: Vec<Message> =
        request.instructions.map(|text| Message::new(Role::System, text)).into_iter().collect();
    read_input(request.input, &mut messages)?;
    let tools = request.tools.unwrap_or_default().into_iter().filter_map(read_tool).collect::<Result<_, _>>()?;
    let thinks = request.reasoning.and_then(|reasoning| reasoning.effort).map(|effort| effort != "none");
    let choice = request.tool_choice.map(read_choice).transpose()?.unwrap_or_default();
    let mut input = chat_input(Conversation { messages, tools, thinks, ..Conversation::default() }, choice)?;
    input.has_one_call = request.parallel_tool_calls == Some(false);
    let usual = Sampling::default();
    let sampling = Sampling {
        temperature: request.temperature.unwrap_or(1.0),
        top_p: request.top_p.unwrap_or(usual.top_p),
        seed: new_seed(),
        constraint: request.text.map(read_format).transpose()?.flatten(),
        ..usual
    };
    let tokens_max = request.max_output_tokens.map_or(TokensMax::Usual, TokensMax::Exactly);
    Ok(Job { model, input: JobInput::Chat(Box::new(input)), sampling, stops: Vec::new(), answers: 1, tokens_max })
}

fn read_input(input: Option<ResponseInput>, messages: &mut Vec<Message>) -> Result<(), Problem> {
    match input {
        Some(ResponseInput::Text(text)) => messages.push(Message::new(Role::User, text)),
        Some(ResponseInput::Items(items)) => {
            for item in items {
                read_item(item, messages)?;
            }
        }
        None => {}
    }
    // Clients try a model by asking nothing.
    if !messages.iter().any(|message| message.role != Role::System) {
        messages.push(Message::new(Role::User, ""));
    }
    Ok(())
}

fn read_item(item: ResponseItem, messages: &mut Vec<Message>) -> Result<(), Problem> {
    let lacks = |field: &str| Problem::invalid("input", format!("an item lacks its {field}"));
    match item.r#type.as_deref() {
        None | Some("message") => {
            let role = item.role.as_deref().and_then(Role::from_name).ok_or_else(|| lacks("role"))?;
            let content = item.content.map(read_content).transpose()?.unwrap_or_default();
            messages.push(Message::new(role, content));
        }
        Some("function_call") => {
            let call = Call {
                id: item.call_id.unwrap_or_default(),
                name: item.name.ok_or_else(|| lacks("name"))?,
                arguments: item.arguments.unwrap_or_else(|| "{}".to_owned()),
            };
            // Calls side by side belong to one message.
            match messages.last_mut().filter(|last| last.role == Role::Assistant) {
                Some(last) => last.calls.push(call),
                None => messages.push(Message { calls: vec![call], ..Message::new(Role::Assistant, "") }),
            }
        }
        Some("function_call_output") => {
            let content = item.output.map(read_content).transpose()?.unwrap_or_default();
            messages.push(Message { call_id: item.call_id, ..Message::new(Role::Tool, content) });
        }
        // What was thought before is of no use to the answer.
        Some("reasoning") => {}
        Some(other) => {
            let shown: String = other.chars().take(100).collect();
            return Err(Problem::invalid("input", format!("items of the type '{shown}' are not read here")));
        }
    }
    Ok(())
}

/// `None` for a tool that is no function.
fn read_tool(tool: ResponseTool) -> Option<Result<Tool, Problem>> {
    (tool.r#type == "function").then(|| {
        let name = tool.name.ok_or_else(|| Problem::invalid("tools", "a function has a name"))?;
        Ok(Tool { name, description: tool.description, parameters: tool.parameters.unwrap_or(Value::Null) })
    })
}

fn read_choice(choice: ResponseToolChoice) -> Result<ToolChoice, Problem> {
    match choice {
        ResponseToolChoice::Word(word) => choice_of(&word),
        ResponseToolChoice::Function { name } => Ok(ToolChoice::Named(name)),
    }
}

fn read_format(text: ResponseText) -> Result<Option<Constraint>, Problem> {
    let Some(format) = text.format else { return Ok(None) };
    match (format.r#type.as_str(), format.schema) {
        ("text", _) => Ok(None),
        ("json_object", _) => Ok(Some(json_constraint(None))),
        ("json_schema", Some(schema)) => Ok(Some(json_constraint(Some(&schema)))),
        ("json_schema", None) => Err(Problem::invalid("text", "text.format has no schema")),
        _ => Err(Problem::invalid("text", "text.format is text, json_object or json_schema")),
    }
}
