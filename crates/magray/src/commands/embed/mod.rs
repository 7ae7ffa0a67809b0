//! `magray embed`: texts in, vectors out, a bounded window at a time.
//! Never holds the whole input, never cuts a text without saying so.

mod totals;
mod windows;

use std::{
    ffi::OsString,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64, mpsc::Receiver},
    time::Instant,
};

use clap::Args;
use indicatif::ProgressBar;
use magray_engine::engine::EngineError;

use self::{
    totals::Totals,
    windows::{Progress, Reading, Window},
};
use super::Context;
use crate::{
    commands::compute_args::{ComputeArgs, flag},
    config::FlagValue,
    console::Console,
    exit::Failure,
    input::{Form, InputName, OnError, Rules, Text, Texts},
    output::{Destination, Format, Origin, Place, Row, Rows},
    session::{Notices, Session},
};

const EXAMPLES: &str = "\
Examples:
  magray embed \"hello world\" \"good morning\"
  magray embed -f texts.txt --output vectors.npy
  cat texts.txt | magray embed --json > vectors.jsonl
  magray embed -f a.jsonl -f b.jsonl --text-field body --with-text --output vectors.jsonl
  magray embed -f crawl.jsonl --on-error skip --output vectors.npy
  magray embed -f questions.jsonl --prompt query --json

Each line of a file is one text and gets one vector; an empty line is the empty text. \
With --jsonl (or a file named .jsonl) a line is a JSON string, or an object with \"text\" (--text-field names another \
field) and, if wanted, an \"id\" that is given back; blank lines are passed over. \
The format text shows the start of each vector on a terminal; a pipe or file gets one line of values a text.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EmbedArgs {
    /// Texts to embed; without any, and without -f, they are read from a pipe (or with -, from standard input)
    #[arg(value_name = "TEXT", conflicts_with = "files")]
    texts: Vec<OsString>,
    /// Read texts from this file, one a line; may be given several times: -f a.txt -f b.txt
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The input is JSON lines
    #[arg(long)]
    jsonl: bool,
    /// Field of a JSON line that holds the text, such as body; the input is JSON lines then [default: text]
    #[arg(long, value_name = "FIELD")]
    text_field: Option<String>,
    /// What becomes of a line that is no text: stop, or skip to name, count and leave it out [default: stop]
    #[arg(long, value_name = "ACTION", hide_possible_values = true)]
    on_error: Option<OnError>,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Prompt of the model to put before each text [default: the model's own, if any]
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// Write to this file; .jsonl, .npy and .txt choose the format
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Format of the output: text, jsonl or npy [default: text]
    #[arg(long, value_enum, hide_possible_values = true)]
    format: Option<Format>,
    /// The same as --format jsonl
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write each text beside its vector; for --format jsonl
    #[arg(long)]
    with_text: bool,
    /// Refuse texts longer than this [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    max_text_bytes: Option<String>,
}

pub(crate) fn run(args: EmbedArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.flags())?;
    let settings = config.embed();
    let format = args.checked_format()?;
    let (output, with_text, on_error) = (args.output.clone(), args.with_text, args.on_error.unwrap_or_default());
    let mut texts = args.open_texts(settings.max_text_bytes)?;
    // Input and output are tried before the model is loaded, or even pulled, in vain.
    let first = texts.next_window()?;
    if first.is_empty() {
        return Err(texts.nothing().into());
    }
    let destination = Destination::open(output.as_deref())?;
    let session = Session::open(&config, texts.bytes_total(), &context.console)?;
    let rows = Rows::start(format, destination, with_text)?;
    let progress = progress_for(&texts, &context.console, rows.are_shown());
    let bar = progress.bar.clone();
    let embedding = Embedding {
        session: &session,
        rows,
        names: texts.names().to_vec(),
        with_place: texts.names().len() > 1 || on_error == OnError::Skip,
        totals: Totals::default(),
        notices: Notices::default(),
    };
    let (engine, threads) = (session.engine().clone(), session.threads());
    let windows = Reading { engine, threads, prompt: settings.prompt, texts, progress }.start(first)?;
    embedding.run(windows, &bar, &context.console)?;
    session.leave();
    Ok(())
}

impl EmbedArgs {
    fn flags(&self) -> Vec<FlagValue> {
        let mut flags = self.compute.flags();
        flags.extend(flag("embed.prompt", self.prompt.as_ref()));
        flags.extend(flag("embed.max_text_bytes", self.max_text_bytes.as_ref()));
        flags
    }

    fn checked_format(&self) -> Result<Format, Failure> {
        let asked = if self.json { Some(Format::Jsonl) } else { self.format };
        let format = match (asked, &self.output) {
            (Some(asked), _) => asked,
            (None, Some(path)) => Format::of_path(path)?.unwrap_or(Format::Text),
            (None, None) => Format::Text,
        };
        if format.is_binary() && writes_to_terminal(self.output.as_deref()) {
            return Err(Failure::Usage(format!("{format} is not for a terminal: name a file with --output")));
        }
        if self.with_text && !format.holds_texts() {
            return Err(Failure::Usage(format!("--with-text is not for {format}, which holds vectors only")));
        }
        Ok(format)
    }

    fn open_texts(self, text_bytes_max: usize) -> Result<Texts, Failure> {
        let is_jsonl = self.jsonl || self.text_field.is_some();
        let rules = Rules {
            form: if is_jsonl { Form::JsonLines } else { Form::Plain },
            text_field: self.text_field.unwrap_or_else(|| "text".to_owned()),
            text_bytes_max,
            on_error: self.on_error.unwrap_or_default(),
        };
        match (self.files.as_slice(), self.texts.as_slice()) {
            ([], [one]) if one == "-" => Ok(Texts::from_stdin(rules)),
            ([], []) if !std::io::stdin().is_terminal() => Ok(Texts::from_stdin(rules)),
            ([], []) => Err(Failure::Usage("no text: give TEXT, -f FILE, or - to read standard input".to_owned())),
            ([], _) if is_jsonl => {
                Err(Failure::Usage("--jsonl is for -f FILE and for standard input, not for TEXT".to_owned()))
            }
            ([], _) => Ok(Texts::from_arguments(self.texts, rules)),
            (files, _) => Ok(Texts::from_files(files, rules)?),
        }
    }
}

fn writes_to_terminal(output: Option<&Path>) -> bool {
    output.is_none_or(|path| path == Path::new("-")) && std::io::stdout().is_terminal()
}

struct Embedding<'a> {
    session: &'a Session,
    rows: Rows,
    /// The inputs that texts name by their numbers.
    names: Vec<InputName>,
    with_place: bool,
    totals: Totals,
    notices: Notices,
}

impl Embedding<'_> {
    fn run(
        mut self,
        windows: Receiver<Result<Window, Failure>>,
        bar: &ProgressBar,
        console: &Console,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        for window in windows {
            let window = window?;
            self.totals.note_skipped(&window.skipped, console);
            self.write(&window, console)?;
        }
        bar.finish_and_clear();
        self.rows.finish()?;
        let seconds = started.elapsed().as_secs_f64();
        self.totals.report(self.session.spec().max_tokens, seconds, console);
        Ok(())
    }

    fn write(&mut self, window: &Window, console: &Console) -> Result<(), Failure> {
        let mut texts = window.texts.iter();
        for request in &window.requests {
            let answer = request.answer.recv().unwrap_or(Err(EngineError::Draining));
            let answer = self.session.take(answer)?;
            self.notices.tell(&answer, self.session, console);
            let origin = &Origin::of(&answer);
            let mut truncated = request.truncated.iter().copied().peekable();
            for (at, (text, vector)) in texts.by_ref().take(request.texts).zip(answer.rows()).enumerate() {
                let is_truncated = truncated.next_if_eq(&at).is_some();
                self.write_row(text, vector, is_truncated, origin)?;
            }
            self.totals.tokens += answer.tokens as u64;
            if self.totals.on.is_empty() {
                self.totals.on = self.session.describe(&answer);
            }
        }
        // A reader of a pipe gets each window as soon as it is there.
        Ok(self.rows.flush()?)
    }

    fn write_row(&mut self, text: &Text, vector: &[f32], is_truncated: bool, origin: &Origin) -> Result<(), Failure> {
        let file = (self.names.len() > 1).then(|| self.names[text.input].to_string());
        let place = self.with_place.then_some(Place { file: file.as_deref(), line: text.line });
        let (index, id) = (self.totals.texts, text.id.as_ref());
        self.rows.write(&Row { index, text: &text.text, id, place, vector, is_truncated, origin })?;
        self.totals.texts += 1;
        if is_truncated {
            self.totals.note_truncated(text, &self.names);
        }
        Ok(())
    }
}

/// A bar for long inputs: a short one is done before a bar could be read.
fn progress_for(texts: &Texts, console: &Console, shows_rows: bool) -> Progress {
    const LONG_BYTES: u64 = 256 << 10;
    let is_short = texts.bytes_total().is_some_and(|bytes| bytes < LONG_BYTES);
    let done = Arc::new(AtomicU64::new(0));
    // Rows that scroll by are progress enough, and a bar between them would garble both.
    let bar = match is_short || shows_rows {
        true => ProgressBar::hidden(),
        false => console.texts_bar(texts.bytes_total(), 0, done.clone()),
    };
    Progress { bar, texts: done }
}
