//! `magray chat`: asks a language model, once or in a conversation on the terminal.
//! Computes in this process; a server has routes of its own for it.

mod interactive;
mod markdown;
mod passages;
pub(super) mod question;
mod saved;
mod signals;
mod slash;
mod talk;
mod written;

use std::path::PathBuf;

use clap::Args;
use magray_engine::decoder::Constraint;

use super::Context;
use crate::{
    commands::{
        compute_args::ComputeArgs, compute_args::flag, constraint_args::read_schema, sampling_args::SamplingArgs,
    },
    config::Config,
    exit::Failure,
    generation::TokensMax,
};
use passages::{PassageArgs, Passages};
use talk::{Talk, TalkOptions};
use written::Shown;

const EXAMPLES: &str = "\
Examples:
  magray chat                                       a conversation; /help lists its commands
  magray chat \"Why is the sky blue?\"                one answer
  magray chat -f letter.txt \"Summarise this letter\"
  git diff | magray chat -f - \"Write a commit message\"
  magray chat -m Qwen/Qwen3-0.6B --system \"Be brief\" \"Name three rivers\"
  magray chat --schema person.json \"Invent a person\"
  magray chat --collection notes \"How do I rotate the keys?\"

Without -m the model is SmolLM2-135M-Instruct, which is pulled on first use. MODEL may also be a GGUF file. On a terminal Markdown is \
rendered; in a pipe the text is as the model wrote it.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChatArgs {
    /// The question [default: what stdin has; on a terminal, a conversation]
    question: Option<String>,
    /// Put the text of this file behind the question; - reads stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Instructions that stand before the conversation
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// New tokens of an answer at most [default: 4096, or what the context leaves]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Answer in JSON of this schema: a file, or the schema itself
    #[arg(long, value_name = "FILE|TEXT")]
    schema: Option<String>,
    /// Answer at once, where the model could think first
    #[arg(long)]
    no_thinking: bool,
    #[command(flatten)]
    passages: PassageArgs,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
    /// Print the text as the model writes it, also on a terminal
    #[arg(long)]
    plain: bool,
}

impl ChatArgs {
    /// A conversation handles Ctrl-C by itself: it stops an answer.
    pub(crate) fn is_conversation(&self) -> bool {
        self.question.is_none() && self.file.is_none() && question::is_asked_on_terminal()
    }
}

pub(crate) fn run(args: &ChatArgs, context: &Context) -> Result<(), Failure> {
    let is_conversation = args.is_conversation();
    if is_conversation && args.json {
        return Err(Failure::Usage("--json prints one answer: give a question, or pipe one in".to_owned()));
    }
    let signals = if is_conversation { Some(signals::Signals::install()?) } else { None };
    // Read before the model is loaded, which may take a while.
    let question = if is_conversation { None } else { Some(question::read(args)?) };
    let config = chat_config(args, None, context)?;
    let passages = args.passages.open()?;
    let constraint = args.schema.as_deref().map(read_schema).transpose()?.map(Constraint::JsonSchema);
    let options = TalkOptions {
        system: args.system.clone(),
        tokens_max: args.max_tokens.map_or(TokensMax::Usual, TokensMax::UpTo),
        sampling: args.sampling.sampling(false, WARMTH),
        constraint,
        thinks: args.no_thinking.then_some(false),
    };
    let mut talk = Talk::open(&config, options, context)?;
    match (question, signals) {
        (Some(question), _) => one_answer(args, &mut talk, &question, passages.as_ref(), context)?,
        (None, Some(signals)) => interactive::run(args, &mut talk, passages.as_ref(), &signals, context)?,
        (None, None) => {}
    }
    talk.leave();
    Ok(())
}

/// The temperature where none is said: drawn a little, since small models repeat themselves otherwise.
const WARMTH: f32 = 0.6;

fn one_answer(
    args: &ChatArgs,
    talk: &mut Talk,
    question: &str,
    passages: Option<&Passages>,
    context: &Context,
) -> Result<(), Failure> {
    let found = match passages {
        Some(passages) => passages.find(question, talk.passage_bytes(), context)?,
        None => Vec::new(),
    };
    let mut shown = Shown::new(args.plain, args.json);
    let seed = talk.seed();
    let said = talk.ask(&passages::with_question(&found, question), question, &mut shown, None)?;
    if args.json {
        let mut object = said.object(talk.model(), seed);
        if passages.is_some() {
            object["citations"] = passages::citations(&found, &said.text);
        }
        return Ok(crate::output::print(&format!("{object}\n"))?);
    }
    shown.finish()?;
    passages::print_citations(&found, &said.text)?;
    match shown.is_terminal() {
        true => context.console.note(said.summary()),
        false => context.console.detail(said.summary()),
    }
    Ok(())
}

/// The settings, with the model of chats as the model: the one that is named here, of a flag, or of the settings.
fn chat_config(args: &ChatArgs, model: Option<&str>, context: &Context) -> Result<Config, Failure> {
    let mut flags = args.compute.flags();
    let named = match model {
        Some(model) => model.to_owned(),
        None => match &args.compute.model {
            Some(model) => model.clone(),
            None => context.settle(&flags)?.chat_model(),
        },
    };
    flags.retain(|flag| flag.key != "model.name");
    flags.extend(flag("model.name", Some(&named)));
    Ok(context.settle(&flags)?)
}
