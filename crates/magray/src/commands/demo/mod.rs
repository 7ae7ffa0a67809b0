//! `magray demo`: a server with simulated GPUs, a load on it and faults, to see what magray is on any machine.
//! Touches no real GPU, no collection of the user's, and nothing that outlives it; every answer is compared with the right vector.

mod browser;
mod model;
mod start;
mod story;
mod target;
mod watch;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Args;
use magray_engine::engine::Engine;
use magray_load::{Load, Sending, drive};

use self::{
    model::DemoModel,
    story::{Event, Summary},
    target::HttpTarget,
    watch::{Teller, Watch},
};
use super::Context;
use crate::{
    exit::Failure,
    remote::{Remote, RemoteOptions},
    server::{self, Served},
};

const EXAMPLES: &str = "\
Examples:
  magray demo                                  until Ctrl-C; opens the page
  magray demo --no-open --for 60
  magray demo --faults 'sim:0/kill@every=20s' --rate 50
  magray demo --faults none                    break it yourself: kill -9 a worker, or POST /ui/faults
  magray top                                   in another terminal: the same server

The GPUs are simulated: workers, memory, faults and recovery are real, the arithmetic is the CPU's, and speeds mean nothing. \
The model is the default one where it is in the store; else a tiny one is made on the spot, whose vectors mean nothing.";

/// Faults that a laptop sees within a minute, and then one now and then: fewer than a device forgets, so that none is given up.
const PLAN: &str = "sim:0/kill@6s, sim:1/hang@13s, sim:0/wrong@21s, sim:1/oom@28s, sim:1/illegal_address@36s, \
                    sim:0/kill@every=150s, sim:1/hang@every=200s";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Open no browser
    #[arg(long)]
    no_open: bool,
    /// Port to listen on; 0 for any that is free [default: 7860, or any that is free where that is taken]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Requests a second, of two texts each
    #[arg(long, value_name = "R", default_value_t = 20.0, value_parser = rate)]
    rate: f64,
    /// End after this time; without it, at Ctrl-C
    #[arg(long = "for", value_name = "SECONDS", value_parser = duration)]
    seconds: Option<f64>,
    /// What goes wrong, as a fault plan (docs/faults.md), or none [default: each kind of fault within the first minute]
    #[arg(long, value_name = "PLAN")]
    faults: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Texts of a request.
const TEXTS: usize = 2;
/// An answer that takes longer than this after the end is lost.
const LOST_AFTER: Duration = Duration::from_secs(30);
/// Longer than anyone looks.
const FOR_EVER: Duration = Duration::from_secs(366 * 24 * 3600);

pub(crate) fn run(args: &DemoArgs, context: &Context) -> Result<(), Failure> {
    let plan = match args.faults.as_deref() {
        Some("none") => "",
        Some(plan) => plan,
        None => PLAN,
    };
    let demo = start::prepare(args.port, plan, context)?;
    let outcome = Arc::new(Mutex::new(None));
    let told = Arc::clone(&outcome);
    let show = Show {
        model: demo.model,
        key: demo.key,
        rate: args.rate,
        seconds: args.seconds,
        opens: !args.no_open && !args.json,
        teller: Teller::new(args.json),
    };
    let work: server::Work = Box::new(move |served| {
        let ended = show.run(served);
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
    });
    server::run(server::Start { beside: Some(work), ..demo.server })?;
    drop(demo.scratch);
    let ended = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
    match ended {
        Some(Ok(summary)) => summary.fault().map_or(Ok(()), |fault| Err(Failure::Demo(fault))),
        Some(Err(failure)) => Err(failure),
        None => Err(Failure::Demo("the load ended before its summary".to_owned())),
    }
}

/// What goes on beside the server.
struct Show {
    model: DemoModel,
    key: Option<String>,
    rate: f64,
    seconds: Option<f64>,
    opens: bool,
    teller: Teller,
}

impl Show {
    fn run(self, served: Served) -> Result<Summary, Failure> {
        let Served { address, engine, stop } = served;
        let url = format!("http://{}", reachable(address));
        let page = page_of(&url, self.key.clone());
        let event = Event::started(&page, &self.model, &engine, self.rate);
        self.teller.tell(&event)?;
        if self.opens {
            browser::open(&page);
        }
        let pool = self.model.pool(&engine)?;
        let target = HttpTarget::start(&url, self.key.clone(), &self.model, engine.clone()).map_err(Failure::Thread)?;
        let load = Load {
            sending: Sending::Open { rate: self.rate },
            texts: TEXTS,
            warmup: Duration::ZERO,
            measured: self.seconds.map_or(FOR_EVER, Duration::from_secs_f64),
            requests_max: u64::MAX,
            seed: 1,
            expected: Vec::new(),
            poison: None,
            lost_after: LOST_AFTER,
            stop: Arc::clone(&stop),
        };
        let watch = Watch { target: &target, engine: &engine, teller: &self.teller, stop: &stop };
        let mut story = None;
        let outcomes = drive(&target, &pool, &load, |underway, over| story = Some(watch.run(underway, &over)));
        let story = story.unwrap_or_else(|| unreachable!("the load waits for who watches it"))?;
        let summary = Summary::of(&outcomes, &story, outcomes.start.elapsed().as_secs_f64());
        self.teller.tell(&Event::Summary(Box::new(summary.clone())))?;
        Ok(summary)
    }
}

/// An address that a client of this machine can use.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::from(([127, 0, 0, 1], address.port())),
        false => address,
    }
}

/// The page of the server, or the list of its routes where it has no page.
fn page_of(url: &str, key: Option<String>) -> String {
    let remote = Remote::new(RemoteOptions { url: url.to_owned(), key, model: None, priority: None });
    let page = ["/ui", "/ui/", "/docs/"].into_iter().find(|path| remote.once(&http::Method::GET, path, None).is_ok());
    format!("{url}{}", page.unwrap_or_default())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.strip_suffix("/s").unwrap_or(text).parse().map_err(|_| format!("'{text}' is no number"))?;
    match (0.1..=2000.0).contains(&rate) {
        true => Ok(rate),
        false => Err("use 0.1 to 2000 requests a second".to_owned()),
    }
}

fn duration(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is no number of seconds"))?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("use 0.1 to 86400 seconds".to_owned()),
    }
}

/// The simulated devices of an engine.
fn simulated(engine: &Engine) -> Vec<String> {
    let names = engine.status().devices.into_iter().map(|device| device.name);
    names.filter(|name| matches!(name, magray_engine::DeviceName::Simulated(_))).map(|name| name.to_string()).collect()
}
