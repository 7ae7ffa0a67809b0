//! `magray top`: an engine that runs, in a terminal: devices, memory, load, models and what happens to them.
//! Starts no engine and loads no model; it moves one only after a yes.

mod history;
mod keys;
mod memory;
mod metrics;
mod source;
#[cfg(test)]
mod tests;
mod view;

use std::{
    io::{self, IsTerminal},
    process,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use ratatui::{
    DefaultTerminal, Terminal,
    backend::TestBackend,
    crossterm::event::{self, Event, KeyEventKind},
};

use self::{
    history::History,
    keys::{Action, Controls, Question},
    source::{Sample, Source},
    view::Screen,
};
use super::{Context, gpu::moves::pick};
use crate::{
    config::Config,
    exit::{Exit, Failure},
    output,
    remote::{Remote, RemoteOptions},
};

const EXAMPLES: &str = "\
Examples:
  magray top                                the engine of this machine
  magray top --server http://gpu-box:7860   a server; its key is taken from MAGRAY_API_KEY
  magray top --once                         one frame as text, for pipes

Keys: up and down select a model, o offloads it, p preheats it, r releases it (each asks first), s sorts, ? helps, q ends.

Moving a model of a server needs a key of an administrator, where it has keys.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Look at this server, such as http://127.0.0.1:7860; a key is taken from MAGRAY_API_KEY
    #[arg(long, value_name = "URL", conflicts_with = "pid")]
    server: Option<String>,
    /// The process id, where several engines run
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Look again after this time
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = interval)]
    every: f64,
    /// Print one frame as text and end
    #[arg(long)]
    once: bool,
    /// Use no colour; NO_COLOR does the same
    #[arg(long)]
    no_color: bool,
}

/// How a screen that goes on is asked for.
struct Watched {
    every: Duration,
    has_colour: bool,
}

/// Columns of a frame that is printed to no terminal.
const COLUMNS: u16 = 100;
const EVERY_MIN: Duration = Duration::from_millis(100);
/// Keys are looked for this often.
const KEYS_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &TopArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&[])?;
    let source = source_of(args, &config)?;
    if args.once {
        return once(&source);
    }
    let has_colour = !args.no_color && config.has_colour();
    watch(source, &Watched { every: Duration::from_secs_f64(args.every), has_colour })
}

/// `magray gpu status --watch`: the engine of this user.
pub(crate) fn watch_engine(every: Duration, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&[])?;
    watch(local(&config, None)?, &Watched { every: every.max(EVERY_MIN), has_colour: config.has_colour() })
}

fn source_of(args: &TopArgs, config: &Config) -> Result<Source, Failure> {
    Ok(match &args.server {
        Some(url) => {
            let (url, key) = (url.clone(), config.api_key());
            Source::Server(Remote::new(RemoteOptions { url, key, model: None, priority: None }))
        }
        None => local(config, args.pid)?,
    })
}

/// The engine of this user; with several, the one of this pid.
fn local(config: &Config, pid: Option<u32>) -> Result<Source, Failure> {
    Ok(Source::Local(pick(config, pid)?.running))
}

fn once(source: &Source) -> Result<(), Failure> {
    let mut history = History::default();
    history.add(source.sample()?);
    let screen = Screen {
        source: &source.name(),
        history: &history,
        controls: &Controls::default(),
        has_colour: false,
        now: Instant::now(),
        is_live: false,
    };
    let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(COLUMNS, |size| size.ws_col);
    let width = if width == 0 { COLUMNS } else { width };
    Ok(output::print(&printed(&screen, width))?)
}

/// A frame as text, without blanks at the ends of lines.
fn printed(screen: &Screen<'_>, width: u16) -> String {
    let backend = TestBackend::new(width, screen.height(width));
    let Ok(mut terminal) = Terminal::new(backend);
    let Ok(_) = terminal.draw(|frame| screen.draw(frame));
    let buffer = terminal.backend().buffer();
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    let lines = buffer.content().chunks(usize::from(width)).map(|cells| line(cells).trim_end().to_owned() + "\n");
    lines.collect::<String>().trim_end().to_owned() + "\n"
}

/// What comes from the threads that ask.
enum Heard {
    Sample(Result<Box<Sample>, String>),
    /// A move is done, or was refused.
    Moved(Question, Result<(), String>),
}

/// Draws until a key ends it.
fn watch(source: Source, watched: &Watched) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::Usage("this needs a terminal: `magray top --once` prints one frame as text".to_owned()));
    }
    // A signal ends the process: the terminal is put in order first.
    let _ = ctrlc::set_handler(|| {
        ratatui::restore();
        process::exit(Exit::Interrupted.code().into());
    });
    // Panics put it in order too.
    let mut terminal = ratatui::try_init().map_err(Failure::Terminal)?;
    let ended = draw_on(&mut terminal, source, watched);
    let restored = ratatui::try_restore().map_err(Failure::Terminal);
    ended.and(restored)
}

fn draw_on(terminal: &mut DefaultTerminal, source: Source, watched: &Watched) -> Result<(), Failure> {
    let (tell, heard) = channel();
    let every = watched.every;
    let (asking, told) = (source.clone(), tell.clone());
    thread::Builder::new().name("ask".to_owned()).spawn(move || ask(&asking, every, &told)).map_err(Failure::Thread)?;
    let mut live = Live { source, history: History::default(), controls: Controls::default(), tell };
    loop {
        live.hear(&heard);
        let name = live.source.name();
        let screen = Screen {
            source: &name,
            history: &live.history,
            controls: &live.controls,
            has_colour: watched.has_colour,
            now: Instant::now(),
            is_live: true,
        };
        terminal.draw(|frame| screen.draw(frame)).map_err(Failure::Terminal)?;
        if live.press(event::poll, event::read)? {
            return Ok(());
        }
    }
}

/// Asks again and again, until it is not heard any more.
fn ask(source: &Source, every: Duration, tell: &Sender<Heard>) {
    loop {
        let sample = source.sample().map(Box::new).map_err(|failure| failure.to_string());
        if tell.send(Heard::Sample(sample)).is_err() {
            return;
        }
        thread::sleep(every);
    }
}

struct Live {
    source: Source,
    history: History,
    controls: Controls,
    tell: Sender<Heard>,
}

impl Live {
    fn hear(&mut self, heard: &Receiver<Heard>) {
        for heard in heard.try_iter() {
            match heard {
                Heard::Sample(Ok(sample)) => self.history.add(*sample),
                Heard::Sample(Err(reason)) => self.history.fail(reason),
                Heard::Moved(Question { how, model }, done) => {
                    let (text, is_bad) = match done {
                        Ok(()) => (format!("{} of '{model}' is done", how.word()), false),
                        Err(reason) => (format!("{} of '{model}': {reason}", how.word()), true),
                    };
                    self.history.happened(Instant::now(), text, is_bad);
                }
            }
        }
    }

    /// Takes the keys that were pressed; whether one of them ends it.
    fn press(
        &mut self,
        poll: impl Fn(Duration) -> io::Result<bool>,
        read: impl Fn() -> io::Result<Event>,
    ) -> Result<bool, Failure> {
        let mut wait = KEYS_EVERY;
        while poll(wait).map_err(Failure::Terminal)? {
            wait = Duration::ZERO;
            // A new size is drawn with the next frame.
            let Event::Key(key) = read().map_err(Failure::Terminal)? else { continue };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            let models = self.history.last().map(|sample| sample.engine.models.as_slice()).unwrap_or_default();
            match self.controls.press(key, models) {
                Some(Action::Quit) => return Ok(true),
                Some(Action::Move(question)) => self.begin(question)?,
                None => {}
            }
        }
        Ok(false)
    }

    /// Moves a model beside the screen.
    fn begin(&mut self, question: Question) -> Result<(), Failure> {
        let (source, tell) = (self.source.clone(), self.tell.clone());
        let text = format!("{} of '{}' was asked for", question.how.word(), question.model);
        self.history.happened(Instant::now(), text, false);
        let moving = move || {
            let done = source.move_model(question.how, &question.model).map_err(|failure| failure.to_string());
            // The screen may have ended.
            let _ = tell.send(Heard::Moved(question, done));
        };
        thread::Builder::new().name("move".to_owned()).spawn(moving).map(drop).map_err(Failure::Thread)
    }
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is no number of seconds"))?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("use 0.1 to 3600 seconds".to_owned()) }
}
