//! `magray embed`: texts in, vectors out, a bounded window at a time.
//! Never holds the whole input, never cuts a text without saying so.

use std::{
    ffi::OsString,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    time::Instant,
};

use clap::Args;
use indicatif::ProgressBar;
use magray_engine::engine::{Answer, Engine, EngineError};

use super::Context;
use crate::{
    commands::compute_args::{ComputeArgs, flag},
    config::FlagValue,
    console::Console,
    exit::Failure,
    input::{Form, Text, Texts},
    output::{Destination, Format, Origin, Row, Rows},
    session::{Notices, Session},
};

const EXAMPLES: &str = "\
Examples:
  magray embed \"hello world\" \"good morning\"
  magray embed -f texts.txt --output vectors.npy
  cat texts.txt | magray embed --json - > vectors.jsonl
  magray embed -f questions.jsonl --prompt query --json

Each line of a file is one text and gets one vector; an empty line is the empty text. \
With --jsonl (or a file named .jsonl) a line is a JSON string, or an object with \"text\" and, if wanted, an \"id\" \
that is given back; blank lines are passed over. \
The format text shows the start of each vector on a terminal; a pipe or file gets one line of values a text.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EmbedArgs {
    /// Texts to embed, or - to read them from standard input
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    texts: Vec<OsString>,
    /// Read texts from this file, one a line
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The input is JSON lines
    #[arg(long)]
    jsonl: bool,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Prompt of the model to put before each text [default: the model's own, if any]
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// Write to this file; .npy and .jsonl choose the format
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Format of the output: text, jsonl or npy [default: text]
    #[arg(long, value_enum, hide_possible_values = true)]
    format: Option<Format>,
    /// The same as --format jsonl
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Refuse texts longer than this [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    max_text_bytes: Option<String>,
}

pub(crate) fn run(args: EmbedArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.flags())?;
    let settings = config.embed();
    let format = args.format();
    if format == Format::Npy && writes_to_terminal(args.output.as_deref()) {
        return Err(Failure::Usage("an .npy array is not for a terminal: name a file with --output".to_owned()));
    }
    let output = args.output.clone();
    let mut texts = args.open_texts(settings.max_text_bytes)?;
    // Input and output are tried before the model is loaded, or even pulled, in vain.
    let first = texts.next_window()?;
    if first.is_empty() {
        return Err(texts.nothing().into());
    }
    let destination = Destination::open(output.as_deref())?;
    let session = Session::open(&config, texts.bytes_total(), &context.console)?;
    let rows = Rows::start(format, destination, session.spec().outputs())?;
    let bar = bar_for(&texts, &context.console, rows.are_shown());
    let (engine, threads) = (session.engine().clone(), session.threads());
    let windows = Reading { engine, threads, prompt: settings.prompt, texts }.start(first)?;
    let embedding = Embedding { session: &session, rows, totals: Totals::default(), notices: Notices::default() };
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

    fn format(&self) -> Format {
        let asked = if self.json { Some(Format::Jsonl) } else { self.format };
        asked.or_else(|| Format::of_path(self.output.as_deref()?)).unwrap_or(Format::Text)
    }

    fn open_texts(self, max_text_bytes: usize) -> Result<Texts, Failure> {
        let form = if self.jsonl { Form::JsonLines } else { Form::Plain };
        match (self.file, self.texts.as_slice()) {
            (Some(path), _) if path == Path::new("-") => Ok(Texts::from_stdin(form, max_text_bytes)),
            (Some(path), _) => Ok(Texts::from_file(&path, form, max_text_bytes)?),
            (None, [one]) if one == "-" => Ok(Texts::from_stdin(form, max_text_bytes)),
            (None, []) => Err(Failure::Usage("no text: give TEXT, -f FILE, or - to read standard input".to_owned())),
            (None, _) if self.jsonl => {
                Err(Failure::Usage("--jsonl is for -f FILE and for standard input, not for TEXT".to_owned()))
            }
            (None, _) => Ok(Texts::from_arguments(self.texts, max_text_bytes)),
        }
    }
}

fn writes_to_terminal(output: Option<&Path>) -> bool {
    output.is_none_or(|path| path == Path::new("-")) && std::io::stdout().is_terminal()
}

/// Windows that are read and computed while another is written. What is read ahead is bounded by it, and the devices are
/// never without work.
const WINDOWS_AHEAD: usize = 1;

struct Window {
    texts: Vec<Text>,
    /// Indices of texts that were longer than the model reads and were cut.
    truncated: Vec<usize>,
    answer: Receiver<Result<Answer, EngineError>>,
    /// How much of the input is read with it.
    bytes_read: u64,
}

struct Reading {
    engine: Engine,
    threads: usize,
    prompt: Option<String>,
    texts: Texts,
}

impl Reading {
    /// Starts a thread that is never joined: it may be waiting for an input that never ends.
    fn start(self, first: Vec<Text>) -> Result<Receiver<Result<Window, Failure>>, Failure> {
        let (sender, windows) = sync_channel(WINDOWS_AHEAD);
        let thread = std::thread::Builder::new().name("input".to_owned());
        thread.spawn(move || self.run(first, &sender)).map_err(Failure::Thread)?;
        Ok(windows)
    }

    fn run(mut self, first: Vec<Text>, windows: &SyncSender<Result<Window, Failure>>) {
        let mut texts = first;
        while !texts.is_empty() {
            let window = self.submit(texts);
            let is_over = window.is_err();
            if windows.send(window).is_err() || is_over {
                return;
            }
            texts = match self.texts.next_window() {
                Ok(texts) => texts,
                Err(error) => {
                    // A receiver that is gone has failed with an error of its own.
                    let _ = windows.send(Err(error.into()));
                    return;
                }
            };
        }
    }

    fn submit(&self, texts: Vec<Text>) -> Result<Window, Failure> {
        let work = self.engine.read_by(self.threads, 0, &texts, self.prompt.as_deref())?;
        let cut = work.texts.iter().enumerate().filter(|(_, text)| text.truncated);
        let truncated = cut.map(|(at, _)| at).collect();
        let (sender, answer) = sync_channel(1);
        self.engine.submit(work, move |answer| {
            let _ = sender.send(answer);
        });
        Ok(Window { texts, truncated, answer, bytes_read: self.texts.bytes_read() })
    }
}

struct Embedding<'a> {
    session: &'a Session,
    rows: Rows,
    totals: Totals,
    notices: Notices,
}

#[derive(Default)]
struct Totals {
    texts: u64,
    tokens: u64,
    truncated: u64,
    /// Lines of the first texts that were cut.
    truncated_lines: Vec<u64>,
    on: String,
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
            self.write(&window, console)?;
            bar.set_position(window.bytes_read);
            bar.set_message(format!(", {} texts", self.totals.texts));
        }
        bar.finish_and_clear();
        self.rows.finish()?;
        let seconds = started.elapsed().as_secs_f64();
        self.totals.report(self.session.spec().max_tokens, seconds, console);
        Ok(())
    }

    fn write(&mut self, window: &Window, console: &Console) -> Result<(), Failure> {
        let answer = window.answer.recv().unwrap_or(Err(EngineError::Draining));
        let answer = self.session.take(answer)?;
        self.notices.tell(&answer, self.session, console);
        let origin = &Origin::of(&answer);
        let mut truncated = window.truncated.iter().copied().peekable();
        for (at, (text, vector)) in window.texts.iter().zip(answer.rows()).enumerate() {
            let is_truncated = truncated.next_if_eq(&at).is_some();
            let id = text.id.as_ref();
            self.rows.write(&Row { index: self.totals.texts, text: &text.text, id, vector, is_truncated, origin })?;
            self.totals.texts += 1;
            if is_truncated {
                self.totals.note_truncated(text.line);
            }
        }
        self.totals.tokens += answer.tokens as u64;
        self.totals.on = self.session.describe(&answer);
        // A reader of a pipe gets each window as soon as it is there.
        self.rows.flush()?;
        Ok(())
    }
}

impl Totals {
    const LINES_SHOWN: usize = 5;

    fn note_truncated(&mut self, line: u64) {
        self.truncated += 1;
        if self.truncated_lines.len() < Self::LINES_SHOWN {
            self.truncated_lines.push(line);
        }
    }

    fn report(&self, tokens_max: usize, seconds: f64, console: &Console) {
        if self.truncated > 0 {
            let lines: Vec<String> = self.truncated_lines.iter().map(u64::to_string).collect();
            let more = if self.truncated as usize > lines.len() { ", ..." } else { "" };
            console.warn(format_args!(
                "{} of {} texts were longer than the {tokens_max} tokens that the model reads and were cut (at {}{more})",
                self.truncated,
                self.texts,
                lines.join(", "),
            ));
        }
        let rate = self.texts as f64 / seconds.max(1e-9);
        console.note(format_args!(
            "{} {}, {} tokens in {seconds:.3} s ({rate:.0} texts/s) on {}",
            self.texts,
            if self.texts == 1 { "text" } else { "texts" },
            self.tokens,
            self.on,
        ));
    }
}

/// A bar for long inputs: a short one is done before a bar could be read.
fn bar_for(texts: &Texts, console: &Console, shows_rows: bool) -> ProgressBar {
    const LONG_BYTES: u64 = 256 << 10;
    let is_short = texts.bytes_total().is_some_and(|bytes| bytes < LONG_BYTES);
    // Rows that scroll by are progress enough, and a bar between them would garble both.
    if is_short || shows_rows {
        return ProgressBar::hidden();
    }
    let bar = console.bytes_bar(texts.bytes_total());
    bar.set_prefix("embedding");
    bar
}
