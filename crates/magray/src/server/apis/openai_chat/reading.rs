//! Requests of OpenAI's chats and completions as jobs.
//! Refuses what no language model here reads: images, sounds, tools that are no functions.

use magray_chat::{Call, Conversation, Message, Role, Tool};
use magray_engine::decoder::{Constraint, Sampling};
use serde_json::Value;

use crate::{
    generation::{Job, JobInput, TokensMax, ToolChoice, new_seed},
    server::{
        app::App,
        chats::{chat_input, json_constraint},
        errors::Problem,
        inputs::Input,
        requests::openai_chat::{
            ChatMessage, ChatRequest, CompletionRequest, Content, ResponseFormat, SamplingFields, Stops, ToolCallField,
            ToolChoiceField, ToolDefinition,
        },
    },
};

/// How an answer is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) is_streamed: bool,
    /// A stream ends with the numbers of tokens.
    pub(super) tells_usage: bool,
}

impl How {
    pub(super) fn of(fields: &SamplingFields) -> Self {
        let tells_usage = fields.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
        Self { is_streamed: fields.stream.unwrap_or(false), tells_usage }
    }
}

pub(super) fn read_chat(app: &App, request: ChatRequest) -> Result<Job, Problem> {
    let model = app.generator(request.model.as_deref())?;
    let messages = request.messages.into_iter().map(read_message).collect::<Result<_, _>>()?;
    let tools = request.tools.unwrap_or_default().into_iter().map(read_tool).collect::<Result<_, _>>()?;
    let thinks = request.reasoning_effort.map(|effort| effort != "none");
    let extra = request.chat_template_kwargs.unwrap_or_default();
    let choice = request.tool_choice.map(read_choice).transpose()?.unwrap_or_default();
    let mut input = chat_input(Conversation { messages, tools, thinks, extra }, choice)?;
    input.has_one_call = request.parallel_tool_calls == Some(false);
    input.continues = request.continue_final_message.unwrap_or(false);
    let constraint = request.response_format.map(read_format).transpose()?.flatten();
    let logprobs = match (request.logprobs.unwrap_or(false), request.top_logprobs) {
        (false, Some(1..)) => return Err(Problem::invalid("top_logprobs", "top_logprobs needs logprobs: true")),
        (is_told, top) => is_told.then(|| top.unwrap_or(0)),
    };
    let tokens_max = request.max_completion_tokens.or(request.sampling.max_tokens);
    let (sampling, stops, answers) = read_sampling(request.sampling, logprobs, constraint)?;
    let tokens_max = tokens_max.map_or(TokensMax::Usual, TokensMax::Exactly);
    Ok(Job { model, input: JobInput::Chat(Box::new(input)), sampling, stops, answers, tokens_max })
}

/// The jobs, and the prompts where they are to stand before the answers.
pub(super) fn read_completion(
    app: &App,
    request: CompletionRequest<'_>,
) -> Result<(Vec<Job>, Option<Vec<String>>), Problem> {
    let model = app.generator(request.model.as_deref())?;
    app.limits().check_count("prompt", request.prompt.len())?;
    let is_echoed = request.echo.unwrap_or(false);
    let constraint = request.response_format.map(read_format).transpose()?.flatten();
    // OpenAI gives 16 tokens where nothing is said.
    const USUAL_TOKENS: u32 = 16;
    let tokens_max = request.sampling.max_tokens.map_or(TokensMax::UpTo(USUAL_TOKENS), TokensMax::Exactly);
    let (sampling, stops, answers) = read_sampling(request.sampling, request.logprobs, constraint)?;
    let (inputs, echoed): (Vec<JobInput>, Vec<String>) = match request.prompt {
        Input::Texts { texts, .. } => {
            let echoed = texts.iter().filter(|_| is_echoed).map(|text| text.to_string()).collect();
            (texts.into_iter().map(|text| JobInput::Text(text.into_owned())).collect(), echoed)
        }
        Input::Ids { texts, .. } => {
            let echoed = texts.iter().filter(|_| is_echoed).map(|ids| app.engine().decode(model, ids, false));
            let echoed = echoed.collect::<Result<_, _>>()?;
            (texts.into_iter().map(JobInput::Ids).collect(), echoed)
        }
    };
    let job = |input| Job { model, input, sampling: sampling.clone(), stops: stops.clone(), answers, tokens_max };
    let of_answers = |echoed: Vec<String>| {
        echoed.into_iter().flat_map(|prompt| std::iter::repeat_n(prompt, answers as usize)).collect()
    };
    Ok((inputs.into_iter().map(job).collect(), is_echoed.then(|| of_answers(echoed))))
}

fn read_sampling(
    fields: SamplingFields,
    logprobs: Option<u8>,
    constraint: Option<Constraint>,
) -> Result<(Sampling, Vec<String>, u32), Problem> {
    let usual = Sampling::default();
    let bias = |(id, bias): (String, f32)| match id.parse() {
        Ok(id) => Ok((id, bias)),
        Err(_) => Err(Problem::invalid("logit_bias", "logit_bias has token ids of the model as its keys")),
    };
    let sampling = Sampling {
        temperature: fields.temperature.unwrap_or(1.0),
        // Others send -1 for all.
        top_k: u32::try_from(fields.top_k.unwrap_or(0).max(0)).unwrap_or(u32::MAX),
        top_p: fields.top_p.unwrap_or(usual.top_p),
        min_p: fields.min_p.unwrap_or(usual.min_p),
        repetition_penalty: fields.repetition_penalty.unwrap_or(usual.repetition_penalty),
        frequency_penalty: fields.frequency_penalty.unwrap_or(usual.frequency_penalty),
        presence_penalty: fields.presence_penalty.unwrap_or(usual.presence_penalty),
        logit_bias: fields.logit_bias.unwrap_or_default().into_iter().map(bias).collect::<Result<_, _>>()?,
        seed: fields.seed.map_or_else(new_seed, i64::cast_unsigned),
        logprobs,
        speculate: fields.speculate,
        constraint,
        ignores_end: fields.ignore_eos.unwrap_or(false),
        ..usual
    };
    let stops = match fields.stop {
        None => Vec::new(),
        Some(Stops::One(stop)) => vec![stop],
        Some(Stops::Several(stops)) => stops,
    };
    Ok((sampling, stops, fields.n.unwrap_or(1)))
}

fn read_message(message: ChatMessage) -> Result<Message, Problem> {
    let role = Role::from_name(&message.role).ok_or_else(|| {
        let shown: String = message.role.chars().take(100).collect();
        let message = format!("there is no role '{shown}': system, developer, user, assistant or tool");
        Problem::invalid("messages", message)
    })?;
    Ok(Message {
        role,
        content: message.content.map(read_content).transpose()?.unwrap_or_default(),
        thinking: message.reasoning_content,
        calls: message.tool_calls.unwrap_or_default().into_iter().map(read_call).collect(),
        call_id: message.tool_call_id,
        name: message.name,
    })
}

pub(in crate::server::apis) fn read_content(content: Content) -> Result<String, Problem> {
    let parts = match content {
        Content::Text(text) => return Ok(text),
        Content::Parts(parts) => parts,
    };
    let mut texts = Vec::new();
    for part in parts {
        match (part.r#type.as_str(), part.text) {
            ("text" | "input_text" | "output_text" | "summary_text" | "refusal", text) => texts.extend(text),
            (other, _) => {
                let shown: String = other.chars().take(100).collect();
                let message = format!("parts of a message are texts; '{shown}' is not read here");
                return Err(Problem::invalid("messages", message));
            }
        }
    }
    Ok(texts.join("\n"))
}

fn read_call(call: ToolCallField) -> Call {
    let arguments = match call.function.arguments {
        Some(Value::String(text)) => text,
        Some(value) => value.to_string(),
        None => "{}".to_owned(),
    };
    Call { id: call.id.unwrap_or_default(), name: call.function.name, arguments }
}

fn read_tool(tool: ToolDefinition) -> Result<Tool, Problem> {
    if tool.r#type.is_some_and(|kind| kind != "function") {
        return Err(Problem::invalid("tools", "tools are functions: {\"type\": \"function\", \"function\": ...}"));
    }
    let function = tool.function;
    let parameters = function.parameters.unwrap_or(Value::Null);
    Ok(Tool { name: function.name, description: function.description, parameters })
}

fn read_choice(choice: ToolChoiceField) -> Result<ToolChoice, Problem> {
    match choice {
        ToolChoiceField::Function { function } => Ok(ToolChoice::Named(function.name)),
        ToolChoiceField::Word(word) => choice_of(&word),
    }
}

/// What a word means.
pub(in crate::server::apis) fn choice_of(word: &str) -> Result<ToolChoice, Problem> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::Never),
        "required" | "any" => Ok(ToolChoice::Required),
        _ => Err(Problem::invalid("tool_choice", "tool_choice is auto, none, required, or a function by its name")),
    }
}

fn read_format(format: ResponseFormat) -> Result<Option<Constraint>, Problem> {
    match format.r#type.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(json_constraint(None))),
        "json_schema" => match format.json_schema.and_then(|named| named.schema) {
            Some(schema) => Ok(Some(json_constraint(Some(&schema)))),
            None => Err(Problem::invalid("response_format", "response_format.json_schema has no schema")),
        },
        _ => Err(Problem::invalid("response_format", "response_format is text, json_object or json_schema")),
    }
}
