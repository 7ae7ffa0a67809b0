//! What is to be generated, and what the engine is told of it: prompt, limits, seeds.
//! Begins nothing before all of it is known to be right.

use std::time::{Duration, Instant};

use magray_chat::{AnswerReader, ChatTemplate, Conversation, Opening, TemplateError, Tool};
use magray_engine::{
    DeviceName,
    decoder::{Constraint, Sampling},
    engine::{CallerId, Engine, EngineError, Priority, Prompt},
};

use super::answer::{AnswerRules, AnswerStream, ChatReading};

/// Text to generate.
#[derive(Debug)]
pub struct Job {
    /// Which of the engine's models.
    pub model: usize,
    /// What it goes on from.
    pub input: JobInput,
    /// How tokens are chosen; each further answer draws by the next seed.
    pub sampling: Sampling,
    /// Texts before which an answer ends.
    pub stops: Vec<String>,
    /// How many answers there are to be.
    pub answers: u32,
    /// How long each may be.
    pub tokens_max: TokensMax,
}

/// What the model goes on from.
#[derive(Debug)]
pub enum JobInput {
    /// A conversation, in the form that the model's template gives it.
    Chat(Box<ChatInput>),
    /// A bare text.
    Text(String),
    /// The model's own token ids.
    Ids(Vec<u32>),
}

impl JobInput {
    /// How long it is, as far as reading takes time.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Chat(chat) => chat.conversation.messages.iter().map(|message| message.content.len()).sum(),
            Self::Text(text) => text.len(),
            Self::Ids(_) => 0,
        }
    }
}

/// A conversation to go on with.
#[derive(Debug, Default)]
pub struct ChatInput {
    /// Its messages and tools.
    pub conversation: Conversation,
    /// Whether tools are called.
    pub choice: ToolChoice,
    /// The last message is the beginning of the answer.
    pub continues: bool,
    /// The first call ends the answer.
    pub has_one_call: bool,
    /// Thoughts are told apart from the answer.
    pub splits_thinking: bool,
    /// Seconds since 1970, for templates that tell the date.
    pub now: i64,
}

/// Whether the model calls tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it decides.
    #[default]
    Auto,
    /// None is.
    Never,
    /// One of them is.
    Required,
    /// The tool of this name.
    Named(String),
}

/// How long an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensMax {
    /// As long as usual, or as the context leaves.
    Usual,
    /// As long as this, or as the context leaves.
    UpTo(u32),
    /// As long as this; refused where the context leaves less.
    Exactly(u32),
}

/// Why a job cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model does something else.
    #[error("this model generates no text: use a language model")]
    NoText,
    /// No answer is asked for, or too many.
    #[error("{0} answers were asked for; from 1 to {ANSWERS_MAX} are given")]
    Answers(u32),
    /// Too many texts are to end the answer, or one is too long.
    #[error("{0}")]
    Stops(String),
    /// No token is asked for.
    #[error("at least one token has to be asked for")]
    NoTokens,
    /// The chat template refused the conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The model is not made for conversations.
    #[error("this model has no chat template: ask for a completion of a text, or use a model that was made for chats")]
    NoTemplate,
    /// A call is asked for where there are no tools.
    #[error("a call is asked for, and there is no tool")]
    NoTools,
    /// The call of a tool is asked for that is not there.
    #[error("there is no tool '{0}'")]
    NoSuchTool(String),
}

/// More answers of one prompt than anybody reads.
pub const ANSWERS_MAX: u32 = 128;
/// Tokens of an answer where nothing is said.
const USUAL_TOKENS: usize = 4096;
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 4096;

impl Job {
    /// Reads the prompt: takes a while where it is long. The template is that of the model, if it has one.
    pub fn prepare(self, engine: &Engine, template: Option<&ChatTemplate>) -> Result<Prepared, JobError> {
        let Self { model, input, mut sampling, stops, answers, tokens_max } = self;
        if engine.vocabulary(model).is_none() {
            return Err(JobError::NoText);
        }
        if !(1..=ANSWERS_MAX).contains(&answers) {
            return Err(JobError::Answers(answers));
        }
        check_stops(&stops)?;
        let (ids, chat) = match input {
            JobInput::Text(text) => (engine.read_prompt(model, &text)?, None),
            JobInput::Ids(ids) => (ids, None),
            JobInput::Chat(chat) => {
                let template = template.ok_or(JobError::NoTemplate)?;
                let (prompt, reading) = (*chat).render(template, &mut sampling)?;
                (engine.read_rendered(model, &prompt)?, Some(reading))
            }
        };
        let context = engine.spec(model).map_or(0, |spec| spec.max_tokens);
        let left = context.saturating_sub(ids.len()).max(1);
        let at_most = |tokens: usize| u32::try_from(tokens.min(left)).unwrap_or(u32::MAX);
        let tokens_max = match tokens_max {
            TokensMax::Usual => at_most(USUAL_TOKENS),
            TokensMax::UpTo(0) | TokensMax::Exactly(0) => return Err(JobError::NoTokens),
            TokensMax::UpTo(tokens) => at_most(tokens as usize),
            TokensMax::Exactly(tokens) => tokens,
        };
        engine.check_context(model, ids.len(), tokens_max)?;
        let rules = AnswerRules { model, stops, tokens_max, chat };
        Ok(Prepared { ids, sampling, answers, rules, device: None })
    }
}

impl ChatInput {
    /// The prompt, and what reads the answer. A call that is wanted is begun in the prompt and constrained.
    fn render(mut self, template: &ChatTemplate, sampling: &mut Sampling) -> Result<(String, ChatReading), JobError> {
        if self.choice == ToolChoice::Never {
            self.conversation.tools.clear();
        }
        let wanted = self.wanted_tools()?;
        let forced = wanted.map(|tools| template.format().forced_call(&tools));
        if forced.is_some() || sampling.constraint.is_some() {
            // What is constrained leaves no room for thoughts.
            self.conversation.thinks = Some(false);
        }
        let opening = Opening { now: self.now, continues: self.continues };
        let mut prompt = template.render(&self.conversation, &opening)?;
        let reads_calls = !self.conversation.tools.is_empty();
        let mut reader = AnswerReader::new(template.format(), reads_calls, self.splits_thinking);
        reader.starts_after(&prompt);
        if let Some(forced) = forced {
            // Nothing is certain of a call that has just begun.
            let _ = reader.push(&forced.opener);
            prompt += &forced.opener;
            sampling.constraint = Some(Constraint::JsonSchema(forced.schema.to_string()));
        }
        let markers = template.format().markers();
        Ok((prompt, ChatReading { reader, markers, has_one_call: self.has_one_call }))
    }

    /// The tools of which one has to be called.
    fn wanted_tools(&self) -> Result<Option<Vec<&Tool>>, JobError> {
        let tools = &self.conversation.tools;
        match &self.choice {
            ToolChoice::Auto | ToolChoice::Never => Ok(None),
            ToolChoice::Required if tools.is_empty() => Err(JobError::NoTools),
            ToolChoice::Required => Ok(Some(tools.iter().collect())),
            ToolChoice::Named(name) => match tools.iter().find(|tool| tool.name == *name) {
                Some(tool) => Ok(Some(vec![tool])),
                None => Err(JobError::NoSuchTool(name.chars().take(100).collect())),
            },
        }
    }
}

fn check_stops(stops: &[String]) -> Result<(), JobError> {
    if stops.len() > STOPS_MAX {
        return Err(JobError::Stops(format!("{} texts are to end the answer; {STOPS_MAX} may", stops.len())));
    }
    match stops.iter().find(|stop| stop.len() > STOP_BYTES_MAX) {
        Some(stop) => {
            let message = format!("a text that ends the answer has {} bytes; {STOP_BYTES_MAX} are allowed", stop.len());
            Err(JobError::Stops(message))
        }
        None => Ok(()),
    }
}

/// A job whose prompt was read.
#[derive(Debug)]
pub struct Prepared {
    ids: Vec<u32>,
    sampling: Sampling,
    answers: u32,
    rules: AnswerRules,
    /// `None`: where the model is computed.
    device: Option<DeviceName>,
}

/// Who asks, how urgently, and until when it is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Urgency {
    /// Who shares the devices with others.
    pub caller: CallerId,
    /// How urgent it is.
    pub priority: Priority,
    /// After this time nothing is wanted any more.
    pub deadline: Option<Duration>,
}

impl Prepared {
    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.ids.len()
    }

    /// How many answers it has.
    pub fn answers(&self) -> usize {
        self.answers as usize
    }

    /// New tokens of an answer at most.
    pub fn new_tokens_max(&self) -> usize {
        self.rules.tokens_max as usize
    }

    /// To be computed on this device.
    pub fn on(self, device: Option<DeviceName>) -> Self {
        Self { device, ..self }
    }

    /// Begins all of its answers. What is wrong with it is told before any of them is begun.
    pub fn begin(&self, engine: &Engine, urgency: Urgency) -> Result<Vec<AnswerStream>, EngineError> {
        let one = |answer: u32| {
            let sampling = Sampling { seed: self.seed(answer), ..self.sampling.clone() };
            let Urgency { caller, priority, deadline } = urgency;
            let (model, ids, new_tokens_max) = (self.rules.model, self.ids.clone(), self.rules.tokens_max);
            let device = self.device;
            let prompt = Prompt { model, ids, new_tokens_max, sampling, caller, priority, deadline, device };
            let started = Instant::now();
            Ok(AnswerStream::new(engine, &self.rules, engine.generate(prompt)?, started))
        };
        (0..self.answers).map(one).collect()
    }

    /// What the draws of an answer follow from.
    pub fn seed(&self, answer: u32) -> u64 {
        self.sampling.seed.wrapping_add(u64::from(answer))
    }
}

/// A seed that differs from call to call.
pub fn new_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The keys of the standard library's hash maps are random.
    RandomState::new().hash_one(std::time::SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_or_too_long_stops_are_refused() {
        assert!(check_stops(&["\n".to_owned()]).is_ok());
        assert!(check_stops(&vec!["a".to_owned(); STOPS_MAX + 1]).unwrap_err().to_string().contains("65 texts"));
        assert!(check_stops(&["a".repeat(STOP_BYTES_MAX + 1)]).unwrap_err().to_string().contains("4097 bytes"));
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(new_seed(), new_seed());
    }
}
