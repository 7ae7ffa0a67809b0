//! `magray embed`: texts in, vectors out, a bounded window at a time.
//! Never holds the whole input, never cuts a text without saying so.

mod backend;
mod progress;
mod resume;
mod totals;
mod windows;

use std::{
    ffi::OsString,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::mpsc::Receiver,
    time::Instant,
};

use clap::Args;
use indicatif::ProgressBar;
use magray_engine::engine::EngineError;

use self::{
    backend::{Backend, Computed},
    progress::Progress,
    resume::Start,
    totals::Totals,
    windows::{Reading, Window},
};
use super::Context;
use crate::{
    commands::{
        compute_args::{ComputeArgs, flag},
        input_args::InputArgs,
        server_args::ServerArgs,
    },
    config::{Config, FlagValue},
    console::Console,
    exit::Failure,
    input::{InputName, OnError, Text, Texts},
    model,
    output::{Format, Layout, Origin, Place, Recipe, Row, Rows, Sink},
    session::{Notices, Session},
};

const EXAMPLES: &str = "\
Examples:
  magray embed \"hello world\" \"good morning\"
  magray embed -f texts.txt --output vectors.npy
  cat texts.txt | magray embed --json > vectors.jsonl
  magray embed -f a.jsonl -f b.jsonl --text-field body --with-text --output vectors.jsonl
  magray embed -f crawl.jsonl --on-error skip --output vectors.parquet
  magray embed -f crawl.jsonl --on-error skip --output vectors.parquet --resume
  magray embed -f questions.jsonl --prompt query --json
  MAGRAY_API_KEY=... magray embed -f texts.txt --server https://embed.example.com --parallel 8 --output vectors.npy

Each line of a file is one text and gets one vector; an empty line is the empty text. \
With --jsonl (or a file named .jsonl) a line is a JSON string, or an object with \"text\" (--text-field names another \
field) and, if wanted, an \"id\" that is given back; blank lines are passed over. \
The format text shows the start of each vector on a terminal; a pipe or file gets one line of values a text. \
A run that was interrupted or killed leaves FILE.part and FILE.part.journal beside the output: the same command with \
--resume goes on after the texts that are done.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EmbedArgs {
    /// Texts to embed; without any, and without -f, they are read from a pipe (or with -, from standard input)
    #[arg(value_name = "TEXT", conflicts_with = "files")]
    texts: Vec<OsString>,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Requests that the server is sent at once, such as 8
    #[arg(long, value_name = "N", requires = "server", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    parallel: u8,
    /// Prompt of the model to put before each text [default: the model's own, if any]
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// Write to this file; .jsonl, .npy, .parquet and .txt choose the format
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Format of the output: text, jsonl, npy or parquet [default: text]
    #[arg(long, value_enum, hide_possible_values = true)]
    format: Option<Format>,
    /// The same as --format jsonl
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write each text beside its vector; for jsonl and parquet
    #[arg(long)]
    with_text: bool,
    /// Go on with the --output that an interrupted run with the same arguments has begun; without one, begin
    #[arg(long)]
    resume: bool,
    /// Refuse texts longer than this [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    max_text_bytes: Option<String>,
}

pub(crate) fn run(args: EmbedArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.flags())?;
    let settings = config.embed();
    let format = args.checked_format()?;
    // Input and output are tried before the model is loaded, or even pulled, in vain.
    let mut texts = args.open_texts(settings.max_text_bytes)?;
    let mut sink = Sink::open(args.output.as_deref(), format.prefix_bytes(), args.resume)?;
    if args.resume && matches!(sink, Sink::Once(_)) {
        return Err(resume::no_file());
    }
    let start = Start::find(&mut texts, sink.last())?;
    sink.begin(&args.recipe(format, &texts, &config, &context.console)?)?;
    let layout = Layout {
        with_file: texts.names().len() > 1,
        with_line: texts.names().len() > 1 || args.input.on_error() == OnError::Skip,
        with_text: args.with_text,
    };
    let totals = Totals::after(start.texts_before);
    if start.first.is_empty() {
        Rows::start(format, sink, layout)?.finish()?;
        context.console.note(format_args!("all {} texts were there already", totals.texts));
        return Ok(());
    }
    let backend = match args.server.remote(&config) {
        Some(remote) => Backend::Server { remote, parallel: args.parallel.into(), prompt: settings.prompt.clone() },
        None => {
            let session = Session::open(&config, texts.bytes_total(), &context.console)?;
            Backend::Here { session: Box::new(session), notices: Notices::default() }
        }
    };
    let rows = Rows::start(format, sink, layout)?;
    let progress = Progress::of(&texts, &start, rows.are_shown(), &context.console);
    let (bar, names) = (progress.bar.clone(), texts.names().to_vec());
    let reading = Reading { to: backend.submitter(settings.prompt)?, texts, digest: start.digest, progress };
    let embedding = Embedding { backend, rows, names, layout, totals };
    embedding.run(reading.start(start.first, start.bytes_before)?, &bar, &context.console)
}

impl EmbedArgs {
    fn flags(&self) -> Vec<FlagValue> {
        let mut flags = self.compute.flags();
        flags.extend(flag("embed.prompt", self.prompt.as_ref()));
        flags.extend(flag("embed.max_text_bytes", self.max_text_bytes.as_ref()));
        flags
    }

    /// What decides the bytes of the output, beside the texts themselves.
    fn recipe(&self, format: Format, texts: &Texts, config: &Config, console: &Console) -> Result<Recipe, Failure> {
        let settings = config.embed();
        let model = match self.server.remote(config) {
            Some(remote) => format!("{} of {}", remote.model().unwrap_or("the default"), remote.url()),
            None => {
                let folder = model::stored_folder(config, console)?;
                format!("{} ({})", config.model()?.name, model::fingerprint(&folder).map_err(Failure::Model)?)
            }
        };
        let files = match texts.names() {
            [_] => "one".to_owned(),
            several => several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let entries = [
            ("magray", env!("CARGO_PKG_VERSION").to_owned()),
            ("model", model),
            ("device", settings.device.to_string()),
            ("precision", settings.precision.to_string()),
            ("prompt", settings.prompt.unwrap_or_else(|| "the default".to_owned())),
            ("format", format.to_string()),
            ("with_text", self.with_text.to_string()),
            ("files", files),
            ("on_error", format!("{:?}", self.input.on_error())),
        ];
        Ok(Recipe(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()))
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

    fn open_texts(&self, text_bytes_max: usize) -> Result<Texts, Failure> {
        let is_of_arguments = !self.texts.is_empty() && self.texts != ["-"];
        if is_of_arguments && self.input.is_jsonl() {
            return Err(Failure::Usage("--jsonl is for -f FILE and for standard input, not for TEXT".to_owned()));
        }
        self.input.open(&self.texts, text_bytes_max, "no text: give TEXT, -f FILE, or - to read standard input")
    }
}

fn writes_to_terminal(output: Option<&Path>) -> bool {
    output.is_none_or(|path| path == Path::new("-")) && std::io::stdout().is_terminal()
}

struct Embedding {
    backend: Backend,
    rows: Rows,
    /// The inputs that texts name by their numbers.
    names: Vec<InputName>,
    layout: Layout,
    totals: Totals,
}

impl Embedding {
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
        self.totals.report(self.backend.tokens_max(), seconds, console);
        self.backend.leave();
        Ok(())
    }

    fn write(&mut self, window: &Window, console: &Console) -> Result<(), Failure> {
        let mut texts = window.texts.iter();
        for request in &window.requests {
            let computed = request.answer.recv().unwrap_or(Computed::Here(Err(EngineError::Draining)));
            let vectors = self.backend.take(computed, console)?;
            let mut truncated = request.truncated.iter().copied().peekable();
            for (at, (text, vector)) in texts.by_ref().take(request.texts).zip(vectors.rows()).enumerate() {
                let is_truncated = truncated.next_if_eq(&at).is_some();
                self.write_row(text, vector, is_truncated, &vectors.origin)?;
            }
            self.totals.tokens += vectors.tokens;
            self.totals.note_cut_by_server(vectors.cut_by_server);
            if self.totals.on.is_empty() {
                self.totals.on = self.backend.describe(&vectors.origin);
            }
        }
        match window.texts.is_empty() {
            true => Ok(()),
            false => Ok(self.rows.commit(self.totals.texts, window.digest.clone())?),
        }
    }

    fn write_row(&mut self, text: &Text, vector: &[f32], is_truncated: bool, origin: &Origin) -> Result<(), Failure> {
        let file = self.layout.with_file.then(|| self.names[text.input].to_string());
        let place = self.layout.with_line.then_some(Place { file: file.as_deref(), line: text.line });
        let (index, id) = (self.totals.texts, text.id.as_ref());
        self.rows.write(&Row { index, text: &text.text, id, place, vector, is_truncated, origin })?;
        self.totals.texts += 1;
        if is_truncated {
            self.totals.note_truncated(text, &self.names);
        }
        Ok(())
    }
}
