//! A conversation on the terminal: lines are read, answers stream, commands are carried out.
//! Leaves by /quit or the end of the input; a failed answer does not end it.

use rustyline::{
    Editor,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::MemHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::{
    ChatArgs, Context, chat_config,
    passages::{self, Passages},
    saved,
    signals::Signals,
    slash::{self, Slash},
    talk::Talk,
    written::Shown,
};
use crate::{
    exit::Failure,
    output::{self, OutputError, safe},
};

const PROMPT: &str = ">>> ";
/// Lines that the arrow keys bring back.
const HISTORY: usize = 1000;

pub(super) fn run(
    args: &ChatArgs,
    talk: &mut Talk,
    passages: Option<&Passages>,
    signals: &Signals,
    context: &Context,
) -> Result<(), Failure> {
    context.console.note(format_args!("{}; /help lists the commands", talk.model()));
    signals.wait_for_questions();
    let mut lines = editor()?;
    loop {
        let line = match lines.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Interrupted) => {
                context.console.note("to leave, press Ctrl-D or type /quit");
                continue;
            }
            Err(error) => return Err(Failure::Usage(format!("cannot read from the terminal: {error}"))),
        };
        if line.trim().is_empty() {
            continue;
        }
        // A history that takes no more lines is no reason to stop.
        let _ = lines.add_history_entry(&line);
        match Slash::parse(&line) {
            Some(Slash::Quit) => return Ok(()),
            Some(slash) => obey(slash, args, talk, context)?,
            None => {
                let answered = answer(&slash::joined(&line), args, talk, passages, signals, context);
                match answered {
                    Ok(()) => {}
                    // Only one answer is shown.
                    Err(error @ Failure::Output(OutputError::ReaderGone)) => return Err(error),
                    Err(error) => context.console.fail(error),
                }
            }
        }
    }
}

fn answer(
    question: &str,
    args: &ChatArgs,
    talk: &mut Talk,
    passages: Option<&Passages>,
    signals: &Signals,
    context: &Context,
) -> Result<(), Failure> {
    let stop = signals.stoppable();
    let found = match passages {
        Some(passages) => passages.find(question, talk.passage_bytes(), context)?,
        None => Vec::new(),
    };
    let mut shown = Shown::new(args.plain, false);
    let said = talk.ask(&passages::with_question(&found, question), question, &mut shown, Some(&stop));
    shown.finish()?;
    let said = said?;
    passages::print_citations(&found, &said.text)?;
    context.console.note(said.summary());
    Ok(())
}

fn obey(slash: Slash, args: &ChatArgs, talk: &mut Talk, context: &Context) -> Result<(), Failure> {
    let console = &context.console;
    match slash {
        Slash::Model(None) => console.note(talk.model()),
        Slash::Model(Some(name)) => {
            let changed =
                chat_config(args, Some(&name), context).and_then(|config| talk.change_model(&config, context));
            match changed {
                Ok(()) => console.note(format_args!("now talking to {name}")),
                Err(error) => console.fail(error),
            }
        }
        Slash::System(text) => {
            let is_set = text.is_some();
            talk.set_system(text);
            console.note(if is_set {
                "these instructions now stand before the conversation"
            } else {
                "no instructions"
            });
        }
        Slash::Save(file) => match saved::write(&file, talk.model(), talk.messages()) {
            Ok(()) => console.note(format_args!("written to {}", file.display())),
            Err(reason) => console.fail(format_args!("cannot write {}: {reason}", safe(&file.to_string_lossy()))),
        },
        Slash::Clear => {
            talk.clear();
            console.note("forgotten");
        }
        Slash::Help => output::print(&format!("{}\n", slash::HELP))?,
        Slash::Mistake(message) => console.fail(message),
        Slash::Quit => {}
    }
    Ok(())
}

fn editor() -> Result<Editor<Lines, MemHistory>, Failure> {
    let failed = |error: ReadlineError| Failure::Usage(format!("cannot read from the terminal: {error}"));
    let config = rustyline::Config::builder().max_history_size(HISTORY).map_err(failed)?.build();
    let history = MemHistory::with_config(&config);
    let mut editor = Editor::with_history(config, history).map_err(failed)?;
    editor.set_helper(Some(Lines));
    Ok(editor)
}

/// Says when a text is whole, and completes the names of commands.
struct Lines;

impl Validator for Lines {
    fn validate(&self, text: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match slash::is_unfinished(text.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Lines {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        let names = ["/model ", "/system ", "/save ", "/clear", "/help", "/quit"];
        let fitting = names.into_iter().filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, fitting.map(str::to_owned).collect()))
    }
}

impl Highlighter for Lines {}

impl Hinter for Lines {
    type Hint = String;
}

impl rustyline::Helper for Lines {}
