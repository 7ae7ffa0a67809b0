//! A model's template: makes one prompt of a conversation.
//! Bounded in size, steps, depth and output; it can read and write nothing else.

#[cfg(test)]
mod tests;

use crate::conversation::{Conversation, Message, Role};
use crate::described_tools::{as_text, merge_system, tool_json};
use crate::format::AnswerFormat;
use crate::python_json::{self, Layout};
use crate::{date, generation_tags};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::json;
use std::collections::BTreeMap;
use std::io;

/// The longest source of all templates of a model together.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// The longest prompt.
const PROMPT_BYTES_MAX: usize = 32 << 20;
/// Steps of one rendering, about a second's work.
const FUEL: u64 = 10_000_000;
/// Calls of macros and loops inside each other.
const DEPTH_MAX: usize = 100;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Variables that no caller may set.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// What a model's files say about its templates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateSources {
    /// The template for every conversation.
    pub default: Option<String>,
    /// Others by name; "tool_use" is used where there are tools.
    pub named: BTreeMap<String, String>,
    /// The text of the token that begins a prompt.
    pub bos: Option<String>,
    /// The text of the token that ends an answer.
    pub eos: Option<String>,
    /// The text of the token for unknown text.
    pub unk: Option<String>,
    /// The text of the token that fills up batches.
    pub pad: Option<String>,
}

/// How a prompt ends and when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// Seconds since 1970, for templates that tell the date.
    pub now: i64,
    /// Whether the model goes on with the last message, which is the assistant's.
    pub continues: bool,
}

/// Why a template gives no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The model has none.
    #[error("the model has no chat template: use a model that was trained for chat, or complete plain text")]
    Missing,
    /// The source is too long to be a template.
    #[error("the chat template is longer than {SOURCE_BYTES_MAX} bytes")]
    TooLarge,
    /// The source is no template.
    #[error("the chat template is broken at line {line}: {detail}")]
    Syntax {
        /// From 1.
        line: usize,
        /// What the parser says.
        detail: String,
    },
    /// The template itself refuses this conversation.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// A variable of the caller has the name of one of ours.
    #[error("chat_template_kwargs must not set '{0}'")]
    Reserved(String),
    /// There is no assistant's message to go on with, or the template does not show it.
    #[error("the last message cannot be continued: it must be the assistant's, with text that the template keeps")]
    NothingToContinue,
    /// It took too many steps.
    #[error("the chat template did not come to an end within {FUEL} steps")]
    Endless,
    /// It wrote too much.
    #[error("the prompt is longer than {PROMPT_BYTES_MAX} bytes")]
    PromptTooLong,
    /// It failed while it was rendered.
    #[error("the chat template failed at line {line}: {detail}")]
    Failed {
        /// From 1.
        line: usize,
        /// What went wrong.
        detail: String,
    },
}

impl TemplateError {
    /// Whether another request could have been rendered.
    pub fn is_of_the_request(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Reserved(_) | Self::NothingToContinue | Self::PromptTooLong)
    }
}

/// A model's templates, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: Vec<(&'static str, String)>,
    format: AnswerFormat,
    has_tool_use: bool,
    reads_tools: bool,
    thinks: bool,
    /// The template shows system messages; otherwise they are put before the user's.
    takes_system: bool,
    /// The template wants contents as lists of parts.
    wants_parts: bool,
}

impl ChatTemplate {
    /// Compiles the templates of a model, and finds out what they can do.
    pub fn compile(sources: &TemplateSources) -> Result<Self, TemplateError> {
        let only = if sources.named.len() == 1 { sources.named.values().next() } else { None };
        let default = sources.default.as_ref().or_else(|| sources.named.get(DEFAULT)).or(only);
        let default = default.ok_or(TemplateError::Missing)?;
        let tool_use = sources.named.get(TOOL_USE);
        let all = format!("{default}\n{}", tool_use.map_or("", String::as_str));
        if all.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::TooLarge);
        }
        let mut environment = environment()?;
        for (name, source) in [(DEFAULT, Some(default)), (TOOL_USE, tool_use)] {
            let Some(source) = source else { continue };
            environment.add_template_owned(name, generation_tags::replace(source)).map_err(|error| {
                TemplateError::Syntax { line: error.line().unwrap_or(1), detail: detail_of(&error) }
            })?;
        }
        let reads = |variable: &str| {
            let templates = [DEFAULT, TOOL_USE].into_iter().filter_map(|name| environment.get_template(name).ok());
            templates.into_iter().any(|template| template.undeclared_variables(false).contains(variable))
        };
        let format = AnswerFormat::of(&all);
        let reads_tools = tool_use.is_some() || reads("tools");
        let thinks = format.thinking.is_some() || reads("enable_thinking") || reads("thinking");
        let texts = [
            ("bos_token", &sources.bos),
            ("eos_token", &sources.eos),
            ("unk_token", &sources.unk),
            ("pad_token", &sources.pad),
        ];
        let tokens = texts.into_iter().map(|(name, text)| (name, text.clone().unwrap_or_default())).collect();
        let mut template = Self {
            environment,
            tokens,
            format,
            has_tool_use: tool_use.is_some(),
            reads_tools,
            thinks,
            takes_system: true,
            wants_parts: false,
        };
        template.probe();
        Ok(template)
    }

    /// The prompt for a conversation.
    pub fn render(&self, conversation: &Conversation, opening: &Opening) -> Result<String, TemplateError> {
        if let Some(name) = RESERVED.into_iter().find(|name| conversation.extra.contains_key(*name)) {
            return Err(TemplateError::Reserved(name.to_owned()));
        }
        let has_calls = conversation.messages.iter().any(|m| m.role == Role::Tool || !m.calls.is_empty());
        let described;
        let conversation = if !self.reads_tools && (has_calls || !conversation.tools.is_empty()) {
            described = as_text(conversation);
            &described
        } else {
            conversation
        };
        let merged;
        let messages = if !self.takes_system && conversation.messages.iter().any(|m| m.role == Role::System) {
            merged = merge_system(conversation.messages.clone());
            &merged
        } else {
            &conversation.messages
        };
        if !opening.continues {
            return self.render_messages(conversation, messages, opening);
        }
        let last = messages.last().filter(|last| last.role == Role::Assistant && last.calls.is_empty());
        let said = last.map(|last| last.content.trim()).filter(|said| !said.is_empty());
        let said = said.ok_or(TemplateError::NothingToContinue)?;
        let mut prompt = self.render_messages(conversation, messages, opening)?;
        let end = prompt.rfind(said).ok_or(TemplateError::NothingToContinue)? + said.len();
        prompt.truncate(end);
        Ok(prompt)
    }

    /// How answers of the model are written.
    pub fn format(&self) -> &AnswerFormat {
        &self.format
    }

    /// Whether the template has a place for tools. Without one they are described in the system message.
    pub fn reads_tools(&self) -> bool {
        self.reads_tools
    }

    /// Whether the model thinks before it answers, always or if asked.
    pub fn thinks(&self) -> bool {
        self.thinks
    }

    fn render_messages(
        &self,
        conversation: &Conversation,
        messages: &[Message],
        opening: &Opening,
    ) -> Result<String, TemplateError> {
        let mut variables: Vec<(String, Value)> = Vec::new();
        let mut set = |name: &str, value: Value| variables.push((name.to_owned(), value));
        for (name, text) in &self.tokens {
            set(name, Value::from(text.clone()));
        }
        if let Some(thinks) = conversation.thinks {
            set("enable_thinking", Value::from(thinks));
            set("thinking", Value::from(thinks));
        }
        for (name, value) in &conversation.extra {
            set(name, Value::from(Serde(value)));
        }
        let messages: Vec<_> = messages.iter().map(|message| self.message_json(message)).collect();
        set("messages", Value::from(Serde(messages)));
        if conversation.tools.is_empty() {
            set("tools", Value::from(()));
        } else {
            set("tools", Value::from(Serde(conversation.tools.iter().map(tool_json).collect::<Vec<_>>())));
        }
        set("add_generation_prompt", Value::from(!opening.continues));
        let now = opening.now;
        set("strftime_now", Value::from_function(move |format: &str| date::strftime(format, now)));
        let name = if self.has_tool_use && !conversation.tools.is_empty() { TOOL_USE } else { DEFAULT };
        let template = self.environment.get_template(name).map_err(failed)?;
        let mut prompt = BoundedText::default();
        let rendered = template.render_captured_to(Value::from_pairs(variables), &mut prompt);
        if prompt.is_full {
            return Err(TemplateError::PromptTooLong);
        }
        rendered.map_err(failed)?;
        Ok(String::from_utf8_lossy(&prompt.bytes).into_owned())
    }

    /// A message as templates know it.
    fn message_json(&self, message: &Message) -> serde_json::Value {
        let mut json = json!({"role": message.role.name(), "content": message.content});
        if self.wants_parts {
            json["content"] = json!([{"type": "text", "text": message.content}]);
        }
        if let Some(thinking) = &message.thinking {
            json["reasoning_content"] = json!(thinking);
            json["thinking"] = json!(thinking);
        }
        if !message.calls.is_empty() {
            let calls = message.calls.iter().map(|call| {
                // Templates want a map and not text.
                let arguments = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!(call.arguments));
                json!({"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}})
            });
            json["tool_calls"] = calls.collect();
        }
        if let Some(id) = &message.call_id {
            json["tool_call_id"] = json!(id);
        }
        if let Some(name) = &message.name {
            json["name"] = json!(name);
        }
        json
    }

    /// Finds out by rendering what the template does with contents and with system messages.
    fn probe(&mut self) {
        let shows = |template: &Self, roles: &[Role], text: &str| {
            let messages = roles.iter().map(|role| Message::new(*role, format!("probe {}", role.name()))).collect();
            let conversation = Conversation { messages, ..Conversation::default() };
            template.render(&conversation, &Opening::default()).is_ok_and(|prompt| prompt.contains(text))
        };
        if !shows(self, &[Role::User], "probe user") {
            self.wants_parts = true;
            self.wants_parts = shows(self, &[Role::User], "probe user");
        }
        if shows(self, &[Role::User], "probe user") {
            self.takes_system = shows(self, &[Role::System, Role::User], "probe system");
        }
    }
}

/// The library as chat templates expect it.
fn environment() -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(failed)?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(DEPTH_MAX);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
    });
    Ok(environment)
}

/// What a template says when it refuses a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let no_json = |error: serde_json::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    let layout = Layout {
        indent: options.get::<Option<usize>>("indent")?.map(|indent| indent.min(16)),
        sorts_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    // Python's other options change nothing here, or nothing that a model could tell.
    for ignored in ["ensure_ascii", "separators"] {
        let _: Option<Value> = options.get(ignored)?;
    }
    options.assert_all_used()?;
    Ok(python_json::write(&serde_json::to_value(value).map_err(no_json)?, layout))
}

/// What an error of the library means.
fn failed(error: Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(Refusal(message)) = cause.downcast_ref() {
            return TemplateError::Refused(message.clone());
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::Endless,
        _ => TemplateError::Failed { line: error.line().unwrap_or(1), detail: detail_of(&error) },
    }
}

fn detail_of(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// A prompt that refuses to grow for ever.
#[derive(Default)]
struct BoundedText {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > PROMPT_BYTES_MAX {
            self.is_full = true;
            return Err(io::Error::other("the prompt is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
