//! Requests of Ollama's chats and texts as jobs.
//! Refuses images, and texts to put behind the answer.

use magray_chat::{Call, Conversation, Message, Role, Tool};
use magray_engine::decoder::{Constraint, Sampling};
use serde_json::Value;

use crate::{
    generation::{Job, JobInput, TokensMax, ToolChoice, new_seed},
    server::{
        app::App,
        chats::{chat_input, json_constraint},
        errors::Problem,
        requests::{
            ollama_chat::{AnswerFields, ChatMessage, ChatRequest, GenerateRequest, Options},
            openai_chat::Stops,
        },
    },
};

/// `None`: there is nothing to answer.
pub(super) fn read_chat(app: &App, request: ChatRequest) -> Result<Option<Job>, Problem> {
    let model = app.generator(request.model.as_deref())?;
    let messages = request.messages.unwrap_or_default();
    if messages.is_empty() {
        return Ok(None);
    }
    let messages = messages.into_iter().map(read_message).collect::<Result<_, _>>()?;
    let tools = request.tools.unwrap_or_default().into_iter().map(|tool| Tool {
        name: tool.function.name,
        description: tool.function.description,
        parameters: tool.function.parameters.unwrap_or(Value::Null),
    });
    let conversation = Conversation { messages, tools: tools.collect(), ..Conversation::default() };
    chat_job(model, conversation, request.how).map(Some)
}

/// `None`: there is nothing to answer.
pub(super) fn read_generate(app: &App, request: GenerateRequest) -> Result<Option<Job>, Problem> {
    let model = app.generator(request.model.as_deref())?;
    refuse_images(request.images.as_deref(), "images")?;
    if request.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(Problem::invalid("suffix", "texts behind the answer are not read here: leave suffix out"));
    }
    let Some(prompt) = request.prompt.filter(|prompt| !prompt.is_empty()) else { return Ok(None) };
    let has_template = app.models().get(model).chat_template(app.engine(), model)?.is_some();
    if request.raw.unwrap_or(false) || !has_template {
        return bare_job(model, JobInput::Text(prompt), request.how).map(Some);
    }
    let system = request.system.filter(|system| !system.is_empty());
    let mut messages: Vec<Message> = system.map(|system| Message::new(Role::System, system)).into_iter().collect();
    messages.push(Message::new(Role::User, prompt));
    chat_job(model, Conversation { messages, ..Conversation::default() }, request.how).map(Some)
}

fn chat_job(model: usize, mut conversation: Conversation, how: AnswerFields) -> Result<Job, Problem> {
    conversation.thinks = match &how.think {
        None | Some(Value::Null) => None,
        Some(Value::Bool(thinks)) => Some(*thinks),
        Some(Value::String(effort)) => Some(effort != "none"),
        Some(_) => return Err(Problem::invalid("think", "think is true, false, or a word such as high")),
    };
    let input = chat_input(conversation, ToolChoice::Auto)?;
    bare_job(model, JobInput::Chat(Box::new(input)), how)
}

fn bare_job(model: usize, input: JobInput, how: AnswerFields) -> Result<Job, Problem> {
    let constraint = how.format.as_ref().map(read_format).transpose()?.flatten();
    let logprobs = how.logprobs.unwrap_or(false).then(|| how.top_logprobs.unwrap_or(0));
    let options = how.options.unwrap_or_default();
    let tokens_max = match options.num_predict {
        Some(tokens @ 0..) => TokensMax::UpTo(u32::try_from(tokens).unwrap_or(u32::MAX).max(1)),
        _ => TokensMax::Usual,
    };
    let (sampling, stops) = read_options(options);
    let sampling = Sampling { logprobs, constraint, ..sampling };
    Ok(Job { model, input, sampling, stops, answers: 1, tokens_max })
}

/// With what Ollama has where a client says nothing, but for the penalty of repetitions, which spoils JSON.
fn read_options(options: Options) -> (Sampling, Vec<String>) {
    const TEMPERATURE: f32 = 0.8;
    const TOP_K: i64 = 40;
    const TOP_P: f32 = 0.9;
    let usual = Sampling::default();
    let sampling = Sampling {
        temperature: options.temperature.unwrap_or(TEMPERATURE),
        top_k: u32::try_from(options.top_k.unwrap_or(TOP_K).max(0)).unwrap_or(u32::MAX),
        top_p: options.top_p.unwrap_or(TOP_P),
        min_p: options.min_p.unwrap_or(usual.min_p),
        repetition_penalty: options.repeat_penalty.unwrap_or(usual.repetition_penalty),
        presence_penalty: options.presence_penalty.unwrap_or(usual.presence_penalty),
        frequency_penalty: options.frequency_penalty.unwrap_or(usual.frequency_penalty),
        seed: options.seed.map_or_else(new_seed, i64::cast_unsigned),
        speculate: options.speculate,
        ..usual
    };
    let stops = match options.stop {
        None => Vec::new(),
        Some(Stops::One(stop)) => vec![stop],
        Some(Stops::Several(stops)) => stops,
    };
    (sampling, stops)
}

fn read_format(format: &Value) -> Result<Option<Constraint>, Problem> {
    match format {
        Value::Null => Ok(None),
        Value::String(word) if word.is_empty() => Ok(None),
        Value::String(word) if word == "json" => Ok(Some(json_constraint(None))),
        Value::Object(_) => Ok(Some(json_constraint(Some(format)))),
        _ => Err(Problem::invalid("format", "format is json, or a JSON schema")),
    }
}

fn read_message(message: ChatMessage) -> Result<Message, Problem> {
    refuse_images(message.images.as_deref(), "messages")?;
    let role = Role::from_name(&message.role)
        .ok_or_else(|| Problem::invalid("messages", "a role is system, user, assistant or tool"))?;
    let calls = message.tool_calls.unwrap_or_default().into_iter().map(|call| Call {
        id: call.id.unwrap_or_default(),
        name: call.function.name,
        arguments: match call.function.arguments {
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
            None => "{}".to_owned(),
        },
    });
    Ok(Message {
        role,
        content: message.content.unwrap_or_default(),
        thinking: message.thinking,
        calls: calls.collect(),
        call_id: message.tool_call_id,
        name: message.tool_name,
    })
}

fn refuse_images(images: Option<&[Value]>, param: &'static str) -> Result<(), Problem> {
    match images {
        Some([_, ..]) => Err(Problem::invalid(param, "images are not read here: send texts alone")),
        _ => Ok(()),
    }
}
