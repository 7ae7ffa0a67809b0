//! A conversation with a model: what was said, and the next answer.
//! Prints nothing itself and knows no commands.

use std::{
    pin::pin,
    time::{SystemTime, UNIX_EPOCH},
};

use magray_chat::{ChatTemplate, Conversation, Message, Role};
use magray_engine::{
    EmbedError,
    decoder::{Constraint, Sampling},
    engine::EngineError,
};

use super::{
    Context,
    signals::Stoppable,
    written::{Said, Shown},
};
use crate::{
    config::Config,
    exit::Failure,
    generation::{ChatInput, Job, JobError, JobInput, Prepared, SideBySide, TokensMax, Urgency, chat_template},
    session::{FIRST, Session},
};

/// How answers are made.
#[derive(Clone, Debug)]
pub(super) struct TalkOptions {
    pub(super) system: Option<String>,
    pub(super) tokens_max: TokensMax,
    pub(super) sampling: Sampling,
    pub(super) constraint: Option<Constraint>,
    pub(super) thinks: Option<bool>,
}

pub(super) struct Talk {
    session: Session,
    model: String,
    template: ChatTemplate,
    options: TalkOptions,
    /// Without the instructions.
    messages: Vec<Message>,
}

impl Talk {
    pub(super) fn open(config: &Config, options: TalkOptions, context: &Context) -> Result<Self, Failure> {
        let model = config.model()?.name;
        let session = Session::open(config, None, &context.console)?;
        if session.engine().vocabulary(FIRST).is_none() {
            return Err(Failure::Usage(format!("'{model}' generates no text: use a language model")));
        }
        let template = chat_template(session.engine(), FIRST).map_err(JobError::from)?;
        let template = template.ok_or(JobError::NoTemplate)?;
        Ok(Self { session, model, template, options, messages: Vec::new() })
    }

    /// Talks to another model; what was said stays.
    pub(super) fn change_model(&mut self, config: &Config, context: &Context) -> Result<(), Failure> {
        let mut other = Self::open(config, self.options.clone(), context)?;
        std::mem::swap(&mut other.messages, &mut self.messages);
        std::mem::replace(self, other).leave();
        Ok(())
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    pub(super) fn seed(&self) -> u64 {
        self.options.sampling.seed
    }

    pub(super) fn set_system(&mut self, text: Option<String>) {
        self.options.system = text;
    }

    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }

    /// All that was said, the instructions first.
    pub(super) fn messages(&self) -> impl Iterator<Item = Message> {
        let system = self.options.system.as_ref().map(|text| Message::new(Role::System, text.clone()));
        system.into_iter().chain(self.messages.iter().cloned())
    }

    /// Bytes of passages that leave room for a question and its answer.
    pub(super) fn passage_bytes(&self) -> usize {
        /// A token has about this many bytes.
        const TOKEN_BYTES: usize = 3;
        self.session.spec().max_tokens / 2 * TOKEN_BYTES
    }

    /// Asks with this text, which is kept as this question, and shows the answer as it comes.
    pub(super) fn ask(
        &mut self,
        text: &str,
        question: &str,
        shown: &mut Shown,
        stop: Option<&Stoppable<'_>>,
    ) -> Result<Said, Failure> {
        let prepared = self.prepare(text)?;
        let engine = self.session.engine();
        let mut answer = SideBySide::new(prepared.begin(engine, Urgency::default())?);
        let mut said = Said::new(prepared.prompt_tokens());
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(Failure::Thread)?;
        runtime.block_on(async {
            let mut stopped = pin!(async {
                match stop {
                    Some(stop) => stop.stopped().await,
                    None => std::future::pending().await,
                }
            });
            loop {
                tokio::select! {
                    biased;
                    () = &mut stopped => {
                        said.stop();
                        break;
                    }
                    event = answer.next() => match event {
                        Some((_, event)) => said.add(event?, shown)?,
                        None => break,
                    },
                }
            }
            Ok::<(), Failure>(())
        })?;
        self.messages.push(Message::new(Role::User, question));
        let mut answered = Message::new(Role::Assistant, said.text.clone());
        answered.thinking = Some(said.thinking.clone()).filter(|thinking| !thinking.is_empty());
        self.messages.push(answered);
        // Another answer to the same question draws other tokens.
        self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
        Ok(said)
    }

    /// The prompt. Where the conversation is longer than the context, its oldest turns are left out.
    fn prepare(&mut self, text: &str) -> Result<Prepared, Failure> {
        loop {
            let mut messages: Vec<Message> = self.messages().collect();
            messages.push(Message::new(Role::User, text));
            let conversation = Conversation { messages, thinks: self.options.thinks, ..Conversation::default() };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
            let input = ChatInput { conversation, splits_thinking: true, now, ..ChatInput::default() };
            let sampling = Sampling { constraint: self.options.constraint.clone(), ..self.options.sampling.clone() };
            let job = Job {
                model: FIRST,
                input: JobInput::Chat(Box::new(input)),
                sampling,
                stops: Vec::new(),
                answers: 1,
                tokens_max: self.options.tokens_max,
            };
            match job.prepare(self.session.engine(), Some(&self.template)) {
                Err(JobError::Engine(EngineError::Text(EmbedError::LongPrompt { .. })))
                    if !self.messages.is_empty() =>
                {
                    let turn = self.messages.len().min(2);
                    self.messages.drain(..turn);
                }
                prepared => return Ok(prepared?),
            }
        }
    }

    /// Ends without waiting for workers.
    pub(super) fn leave(self) {
        self.session.leave();
    }
}
