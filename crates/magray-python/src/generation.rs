//! Answers of a language model as events of JSON: parts of texts, thoughts and calls, and how each answer ended.
//! Chooses no defaults but those of OpenAI's API.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use magray_chat::{Call, Conversation, Message, Role, Tool};
use magray_engine::decoder::{Constraint, Sampling};
use magray_engine::engine::Engine;
use magray_generation::{
    AnswerEvent, AnswersEvent, ChatInput, Job, JobInput, Part, Prepared, SideBySide, TokensMax, ToolChoice, Urgency,
    new_seed,
};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::encoding::MODEL;
use crate::failure::Failure;
use crate::leaving::{Home, is_left_alone};
use crate::waiting::{Wakeups, wait};

/// What is asked for. The package writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    /// A conversation, or else a text.
    messages: Option<Vec<AskedMessage>>,
    text: Option<String>,
    #[serde(default)]
    tools: Vec<AskedTool>,
    tool_choice: Option<String>,
    thinks: Option<bool>,
    #[serde(default)]
    template_variables: Map<String, Value>,
    max_tokens: Option<u32>,
    answers: Option<u32>,
    #[serde(default)]
    stop: Vec<String>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    #[serde(default)]
    logit_bias: Vec<(u32, f32)>,
    seed: Option<u64>,
    schema: Option<Value>,
    regex: Option<String>,
    choices: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedMessage {
    role: String,
    #[serde(default)]
    content: String,
    thinking: Option<String>,
    #[serde(default)]
    calls: Vec<AskedCall>,
    call_id: Option<String>,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedCall {
    #[serde(default)]
    id: String,
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedTool {
    name: String,
    description: Option<String>,
    #[serde(default)]
    parameters: Value,
}

impl Asked {
    pub(crate) fn into_job(self) -> Result<Job, Failure> {
        let sampling = self.sampling()?;
        let choice = match self.tool_choice.as_deref() {
            None | Some("auto") => ToolChoice::Auto,
            Some("none") => ToolChoice::Never,
            Some("required") => ToolChoice::Required,
            Some(name) => ToolChoice::Named(name.to_owned()),
        };
        let tools = self.tools.into_iter().map(|AskedTool { name, description, parameters }| Tool {
            name,
            description,
            parameters,
        });
        let input = match (self.messages, self.text) {
            (None, Some(text)) => JobInput::Text(text),
            (Some(messages), None) if !messages.is_empty() => {
                let messages = messages.into_iter().map(AskedMessage::read).collect::<Result<_, _>>()?;
                let (tools, thinks, extra) = (tools.collect(), self.thinks, self.template_variables);
                let mut input = chat_input(Conversation { messages, tools, thinks, extra });
                input.choice = choice;
                JobInput::Chat(Box::new(input))
            }
            _ => return Err(Failure::input("there is no message to answer, and no text to go on with")),
        };
        let tokens_max = self.max_tokens.map_or(TokensMax::Usual, TokensMax::UpTo);
        let (stops, answers) = (self.stop, self.answers.unwrap_or(1));
        Ok(Job { model: MODEL, input, sampling, stops, answers, tokens_max })
    }

    fn sampling(&self) -> Result<Sampling, Failure> {
        let constraint = match (&self.schema, &self.regex, &self.choices) {
            (None, None, None) => None,
            (Some(schema), None, None) => Some(Constraint::JsonSchema(schema.to_string())),
            (None, Some(regex), None) => Some(Constraint::Regex(regex.clone())),
            (None, None, Some(choices)) => Some(Constraint::Choices(choices.clone())),
            _ => return Err(Failure::input("a schema, a regular expression or choices: only one of them")),
        };
        let usual = Sampling::default();
        Ok(Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(usual.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(new_seed),
            constraint,
            ..usual
        })
    }
}

impl AskedMessage {
    fn read(self) -> Result<Message, Failure> {
        let role = Role::from_name(&self.role);
        let unknown = || Failure::input(format!("there is no role '{}': system, user, assistant or tool", self.role));
        let role = role.ok_or_else(unknown)?;
        let calls = self.calls.into_iter().map(|AskedCall { id, name, arguments }| Call { id, name, arguments });
        let (content, thinking, call_id) = (self.content, self.thinking, self.call_id);
        Ok(Message { role, content, thinking, calls: calls.collect(), call_id, name: self.name })
    }
}

#[pyclass(frozen, module = "magray._magray")]
pub(crate) struct Answers {
    /// `None` when they were cancelled.
    answers: Mutex<Option<SideBySide>>,
    #[pyo3(get)]
    prompt_tokens: usize,
    home: Home,
}

/// What comes next; `None` when all are over.
type Next = Result<Option<String>, Failure>;

impl Answers {
    pub(crate) fn begin(engine: &Engine, prepared: &Prepared) -> Result<Self, Failure> {
        let answers = SideBySide::new(prepared.begin(engine, Urgency::default())?);
        let prompt_tokens = prepared.prompt_tokens();
        Ok(Self { answers: Mutex::new(Some(answers)), prompt_tokens, home: Home::here() })
    }

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Next> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(under_way) = answers.as_mut() else { return Poll::Ready(Err(Failure::Cancelled)) };
        under_way.poll_next(context).map(|next| next.map(shown).transpose())
    }
}

#[pymethods]
impl Answers {
    /// Waits for what comes next, at most so many seconds: whether it came, and the event, or `None` at the end. An interrupt
    /// cancels the answers.
    #[pyo3(signature = (seconds = None))]
    fn wait(&self, python: Python<'_>, seconds: Option<f64>) -> PyResult<(bool, Option<String>)> {
        self.home.check()?;
        match wait(python, seconds, |context| self.poll_next(context)) {
            Ok(Some(next)) => Ok((true, next?)),
            Ok(None) => Ok((false, None)),
            Err(interrupt) => {
                self.cancel();
                Err(interrupt)
            }
        }
    }

    /// What comes next, if it is there; else the event loop is told this key when it may be.
    fn poll(&self, wakeups: &Wakeups, key: u64) -> PyResult<(bool, Option<String>)> {
        self.home.check()?;
        match self.poll_next(&mut Context::from_waker(&wakeups.waker(key))) {
            Poll::Ready(next) => Ok((true, next?)),
            Poll::Pending => Ok((false, None)),
        }
    }

    /// Ends them.
    fn cancel(&self) {
        if self.home.is_here() {
            *self.answers.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if is_left_alone(self.home) {
            std::mem::forget(self.answers.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

fn shown((answer, event): AnswersEvent) -> Result<String, Failure> {
    let part = |part: &Part| match part {
        Part::Text(text) => json!({ "text": text }),
        Part::Thinking(text) => json!({ "thinking": text }),
        Part::CallBegins { index, name } => json!({ "call": index, "name": name }),
        Part::CallArguments { index, json } => json!({ "call": index, "arguments": json }),
    };
    let parts = |all: &[Part]| all.iter().map(part).collect::<Vec<_>>();
    Ok(match event? {
        AnswerEvent::Token(token) => json!({ "answer": answer, "parts": parts(&token.parts) }),
        AnswerEvent::End(end) => json!({
            "answer": answer,
            "parts": parts(&end.parts),
            "finish": end.finish.code(),
            "stop": end.stop,
            "tokens": end.tokens,
            "device": end.device().map(|device| device.to_string()),
        }),
    }
    .to_string())
}

/// What a conversation is read as, beside its messages.
fn chat_input(conversation: Conversation) -> ChatInput {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ChatInput { conversation, now: since.as_secs() as i64, splits_thinking: true, ..ChatInput::default() }
}
