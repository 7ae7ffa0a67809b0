//! `magray gpu offload`, `release`, `preheat`, `priority`, `timeout` and `pin`: moves the models of an engine that runs.
//! Decides nothing: the engine drains, moves and refuses; this sends requests and prints the results.

use clap::Args;
use magray_engine::engine::Priority;
use serde_json::json;

use super::{
    super::Context,
    status::{report_of, stay, unexpected},
    words::{size, span},
};
use crate::{
    config::Config,
    control::{AskError, Done, EngineReport, Idle, ModelDone, Reply, Request, Running, running},
    exit::Failure,
    output,
};

const OFFLOAD_EXAMPLES: &str = "\
Examples:
  magray gpu offload                        the model of the engine that runs
  magray gpu offload all-MiniLM-L6-v2
  magray gpu offload --all --pid 4711

The weights stay in the memory of the host. Batches that run end first, and no request fails: the next one brings the \
model back.";

const RELEASE_EXAMPLES: &str = "\
Examples:
  magray gpu release all-MiniLM-L6-v2
  magray gpu release --all                  and 0 bytes of the GPU are taken

The weights leave the memory of the host too, and a GPU without a model is let go of. The next request loads the model \
again, from the disk.";

const PREHEAT_EXAMPLES: &str = "\
Examples:
  magray gpu preheat all-MiniLM-L6-v2
  magray gpu preheat all-MiniLM-L6-v2 --priority high

Idle models make room for it where there is none. With a high priority, models do that compute or just came, unless they \
count as much or are pinned.";

const PRIORITY_EXAMPLES: &str = "\
Examples:
  magray gpu priority high all-MiniLM-L6-v2  it evicts others, and they do not evict it
  magray gpu priority normal                 every model

Counts until the engine ends; gpu.models.priority is what it starts with. A request may be more urgent than its model: see \
x-magray-priority.";

const TIMEOUT_EXAMPLES: &str = "\
Examples:
  magray gpu timeout 300                    every model
  magray gpu timeout 0 all-MiniLM-L6-v2     off the GPU as soon as nothing of it waits or runs
  magray gpu timeout never all-MiniLM-L6-v2

Counts until the engine ends; gpu.idle_timeout_s is what it starts with.";

const PIN_EXAMPLES: &str = "\
Examples:
  magray gpu pin all-MiniLM-L6-v2           neither idleness nor other models push it off
  magray gpu pin all-MiniLM-L6-v2 --off";

/// What all of them take.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// The process id, where several engines run
    #[arg(long, value_name = "PID")]
    pub(super) pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// How long is waited for a model.
#[derive(Debug, Args)]
pub(crate) struct WithinArgs {
    /// Wait at most this long for the move
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = super::super::bench::seconds)]
    within: f64,
}

#[derive(Debug, Args)]
#[command(after_help = OFFLOAD_EXAMPLES)]
pub(crate) struct OffloadArgs {
    #[command(flatten)]
    which: SomeOrAll,
    #[command(flatten)]
    within: WithinArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Args)]
#[command(after_help = RELEASE_EXAMPLES)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    which: SomeOrAll,
    #[command(flatten)]
    within: WithinArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// One model or all of them.
#[derive(Debug, Args)]
pub(crate) struct SomeOrAll {
    /// The model, by its name in `magray gpu status` [default: the only one]
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// Every model
    #[arg(long, conflicts_with = "model")]
    all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = PREHEAT_EXAMPLES)]
pub(crate) struct PreheatArgs {
    /// The model, by its name in `magray gpu status`
    #[arg(value_name = "MODEL")]
    model: String,
    /// How urgent it is: high, normal or low
    #[arg(long, value_name = "PRIORITY", default_value = "normal")]
    priority: Priority,
    #[command(flatten)]
    within: WithinArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Args)]
#[command(after_help = PRIORITY_EXAMPLES)]
pub(crate) struct PriorityArgs {
    /// How much it counts: high, normal or low
    #[arg(value_name = "PRIORITY")]
    priority: Priority,
    /// The model, by its name in `magray gpu status` [default: every model]
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Args)]
#[command(after_help = TIMEOUT_EXAMPLES)]
pub(crate) struct TimeoutArgs {
    /// Seconds without work; 0: at once after use; never
    #[arg(value_name = "SECONDS", value_parser = idle)]
    seconds: Idle,
    /// The model, by its name in `magray gpu status` [default: every model]
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Args)]
#[command(after_help = PIN_EXAMPLES)]
pub(crate) struct PinArgs {
    /// The model, by its name in `magray gpu status`
    #[arg(value_name = "MODEL")]
    model: String,
    /// Unpin it: it may be evicted again
    #[arg(long)]
    off: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn offload(args: &OffloadArgs, context: &Context) -> Result<(), Failure> {
    let within_ms = args.within.ms();
    let request = |model| Request::Offload { model, within_ms };
    run(&args.engine, Some(&args.which), context, request)
}

pub(crate) fn release(args: &ReleaseArgs, context: &Context) -> Result<(), Failure> {
    let within_ms = args.within.ms();
    let request = |model| Request::Release { model, within_ms };
    run(&args.engine, Some(&args.which), context, request)
}

pub(crate) fn preheat(args: &PreheatArgs, context: &Context) -> Result<(), Failure> {
    let within_ms = args.within.ms();
    let request = |_| Request::Preheat { model: Some(args.model.clone()), within_ms, priority: args.priority };
    run(&args.engine, None, context, request)
}

pub(crate) fn priority(args: &PriorityArgs, context: &Context) -> Result<(), Failure> {
    let request = |_| Request::Priority { model: args.model.clone(), priority: args.priority };
    run(&args.engine, None, context, request)
}

pub(crate) fn timeout(args: &TimeoutArgs, context: &Context) -> Result<(), Failure> {
    let request = |_| Request::Timeout { model: args.model.clone(), idle: args.seconds };
    run(&args.engine, None, context, request)
}

pub(crate) fn pin(args: &PinArgs, context: &Context) -> Result<(), Failure> {
    let request = |_| Request::Pin { model: Some(args.model.clone()), pinned: !args.off };
    run(&args.engine, None, context, request)
}

impl WithinArgs {
    fn ms(&self) -> u64 {
        (self.within * 1e3) as u64
    }
}

fn run(
    args: &EngineArgs,
    which: Option<&SomeOrAll>,
    context: &Context,
    request: impl FnOnce(Option<String>) -> Request,
) -> Result<(), Failure> {
    let config = context.settle(&[])?;
    let engine = pick(&config, args.pid)?;
    let model = match which {
        Some(which) => which.pick(&engine.report)?,
        None => None,
    };
    let request = request(model);
    let done = match engine.running.ask(&request)? {
        Reply::Done(done) => done,
        other => return Err(unexpected(engine.running.pid, &other).into()),
    };
    let text = match args.json {
        true => format!("{}\n", json!({ "pid": done.status.pid, "models": done.models, "status": done.status })),
        false => done.models.iter().map(|model| Told { model, done: &done }.sentence(&request) + "\n").collect(),
    };
    Ok(output::print(&text)?)
}

pub(in crate::commands) struct Picked {
    pub(in crate::commands) running: Running,
    report: EngineReport,
}

pub(in crate::commands) fn pick(config: &Config, pid: Option<u32>) -> Result<Picked, Failure> {
    let is_meant = |running: &Running| pid.is_none_or(|pid| running.pid == pid);
    let all: Vec<Running> = running(&config.control_folders()).into_iter().filter(is_meant).collect();
    let mut asked = Vec::new();
    for (running, report) in all.into_iter().map(|running| (running.clone(), report_of(&running))) {
        match report {
            Ok(report) => asked.push(Picked { running, report }),
            Err(AskError::Gone { .. }) => {}
            // One that does not answer may be the one that is meant.
            Err(error) => return Err(error.into()),
        }
    }
    if asked.len() > 1 {
        let listed: Vec<String> =
            asked.iter().map(|engine| format!("{} ({})", engine.running.pid, names(&engine.report))).collect();
        return Err(Failure::Usage(format!("several engines run: pick one with --pid: {}", listed.join("; "))));
    }
    asked.pop().ok_or(Failure::NoEngine { pid })
}

impl SomeOrAll {
    /// The model to name; `None`: all of them.
    fn pick(&self, engine: &EngineReport) -> Result<Option<String>, Failure> {
        match (&self.model, engine.models.as_slice()) {
            (Some(model), _) => Ok(Some(model.clone())),
            (None, [only]) => Ok(Some(only.name.clone())),
            (None, _) if self.all => Ok(None),
            (None, _) => {
                let names = names(engine);
                Err(Failure::Usage(format!("name a model, or give --all: this engine has {names}")))
            }
        }
    }
}

fn names(engine: &EngineReport) -> String {
    engine.models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ")
}

struct Told<'a> {
    model: &'a ModelDone,
    done: &'a Done,
}

impl Told<'_> {
    fn sentence(&self, request: &Request) -> String {
        match request {
            Request::Offload { .. } => self.offloaded(),
            Request::Release { .. } => self.released(),
            Request::Preheat { .. } => self.preheated(),
            Request::Priority { priority, .. } => format!("'{}' has {} priority", self.model.model, priority.code()),
            Request::Timeout { .. }
            | Request::Pin { .. }
            | Request::Status {}
            | Request::Metrics {}
            | Request::ClearCache {}
            | Request::Load { .. }
            | Request::Unload { .. }
            | Request::Alias { .. } => self.stays(),
        }
    }

    fn offloaded(&self) -> String {
        let ModelDone { model, .. } = self.model;
        match self.done.status.has_gpu() {
            true => format!("'{model}' is off the GPU after {}{}", self.took(), self.rest()),
            false => {
                format!("there is no GPU to take '{model}' off: it stays in the memory of the host{}", self.rest())
            }
        }
    }

    fn released(&self) -> String {
        let ModelDone { model, .. } = self.model;
        format!("'{model}' is out of all memory after {}{}", self.took(), self.rest())
    }

    fn preheated(&self) -> String {
        let ModelDone { model, residency, .. } = self.model;
        let gpu = residency.iter().find(|at| at.place == "on_gpu");
        let place = match gpu {
            Some(at) => format!("on {}", at.device),
            None if self.done.status.has_gpu() => "on its way".to_owned(),
            None => "in the memory of the host, as there is no GPU,".to_owned(),
        };
        format!("'{model}' is {place} after {}{}", self.took(), self.rest())
    }

    fn stays(&self) -> String {
        let ModelDone { model, .. } = self.model;
        let report = self.done.status.models.iter().find(|report| report.name == *model);
        let what = match report.map(stay).as_deref() {
            Some("pinned") => "stays on its GPU, also when others need the memory".to_owned(),
            Some("after use") => "leaves the GPU as soon as nothing of it waits or runs".to_owned(),
            Some("never") | None => "leaves the GPU only when others need the room".to_owned(),
            Some(time) => format!("leaves the GPU after {time} without work"),
        };
        let remark = if self.done.status.has_gpu() { "" } else { "; there is no GPU now" };
        format!("'{model}' {what}{remark}")
    }

    fn took(&self) -> String {
        span(self.model.took_ms / 1e3)
    }

    fn rest(&self) -> String {
        let places: Vec<String> = self.model.residency.iter().map(|at| format!("{} {}", at.device, at.place)).collect();
        let memory = self.done.status.devices.iter().filter(|device| device.is_gpu).filter_map(|device| {
            let (used, left) = (device.memory_used_bytes?, device.memory_left_bytes());
            let left = left.map(|left| format!(", {} left", size(left))).unwrap_or_default();
            Some(format!("; {} holds {}{left}", device.name, size(used)))
        });
        format!(" ({}){}", places.join(", "), memory.collect::<String>())
    }
}

fn idle(text: &str) -> Result<Idle, String> {
    if text.eq_ignore_ascii_case("never") {
        return Ok(Idle::Never);
    }
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is neither a number of seconds nor never"))?;
    match (0.0..=1e9).contains(&seconds) {
        true => Ok(Idle::AfterMs((seconds * 1e3).ceil() as u64)),
        false => Err("use 0 to 1000000000 seconds, or never".to_owned()),
    }
}

#[cfg(test)]
mod tests;
