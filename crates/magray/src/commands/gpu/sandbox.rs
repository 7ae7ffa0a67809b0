//! `magray gpu sandbox`: shows what the processes that hold GPUs cannot do, by letting them try it.
//! Changes nothing: what is tried is made for it and removed.

use std::env;

use clap::Args;
use magray_engine::{
    DeviceChoice, EncoderOptions,
    engine::{Attempt, EngineOptions, ModelSource, Outcome, Sandbox, SandboxCheck, check_sandbox},
    testing::SimulatedGpu,
};
use serde_json::{Value, json};

use super::super::Context;
use crate::{
    commands::compute_args::flag,
    exit::Failure,
    model,
    output::{self, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray gpu sandbox                       the GPUs that `magray serve` would use
  magray gpu sandbox --device simulated    without a GPU
  MAGRAY_SANDBOX=off magray gpu sandbox    what could be done without it

Ends with code 7 where a worker does not start, or where one that is wholly confined could do something of it.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GpuSandboxArgs {
    /// Model whose folder the worker may read: a name of the store, a hub repository, or a folder
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The GPU: cuda, cuda:NUMBER or cuda:UUID; or simulated
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &GpuSandboxArgs, context: &Context) -> Result<(), Failure> {
    let is_simulated = matches!(args.device.as_deref(), Some("simulated" | "sim"));
    // The settings know no such device.
    let device = args.device.as_ref().filter(|_| !is_simulated);
    let flags = [flag("model.name", args.model.as_ref()), flag("embed.device", device)];
    let config = context.settle(&flags.into_iter().flatten().collect::<Vec<_>>())?;
    let name = config.model()?.name;
    let settings = config.engine()?;
    let options = model::encoder_options(&config);
    let encoder = match is_simulated {
        true => EncoderOptions { device: DeviceChoice::Auto, ..options },
        false => options,
    };
    // A model that was not pulled is not pulled for this.
    let folder = model::find(&config)?;
    let options = EngineOptions {
        encoder,
        gpus: settings.gpus,
        schedule: settings.schedule,
        simulated_gpus: if is_simulated { vec![SimulatedGpu::default()] } else { Vec::new() },
        ..EngineOptions::with_gpus(
            folder.map(|folder| ModelSource::Folder(folder).into()).into_iter().collect(),
            env::current_exe().map_err(Failure::OwnProgram)?,
        )
    };
    let (checks, absent) = check_sandbox(&options).map_err(|reason| model::load_failure(&name, reason))?;
    let why = absent.map(|reason| format!("{reason} ({})", reason.code()));
    let text = if args.json { json_of(&checks, why.as_deref()) } else { text_of(&checks, why.as_deref()) };
    output::print(&text)?;
    checks.iter().find_map(complaint).map_or(Ok(()), |complaint| Err(Failure::NotConfined(complaint)))
}

fn complaint(check: &SandboxCheck) -> Option<String> {
    let device = &check.device;
    match &check.tried {
        Err(error) => Some(format!("{device}: {error}")),
        Ok((sandbox, attempts)) if sandbox.is_whole() => {
            let escaped = attempts.iter().find(|attempt| attempt.outcome != Outcome::Refused)?;
            Some(format!("{device}: the sandbox ({sandbox}) does not keep a worker from this: {}", escaped.what))
        }
        Ok(_) => None,
    }
}

fn text_of(checks: &[SandboxCheck], absent: Option<&str>) -> String {
    let mut text = String::new();
    if checks.is_empty() {
        text += &format!("no GPU is used: {}\n", absent.unwrap_or("the settings say so"));
    }
    for SandboxCheck { device, tried } in checks {
        match tried {
            Ok((sandbox, attempts)) => {
                let missing = sandbox.missing.as_ref().map_or(String::new(), |missing| format!(" ({missing})"));
                text += &format!("{device}: sandbox: {sandbox}{missing}\n");
                text += &aligned(&attempts.iter().map(row).collect::<Vec<_>>());
            }
            Err(error) => text += &format!("{device}: {error}\n"),
        }
    }
    text
}

fn row(attempt: &Attempt) -> Vec<String> {
    vec![format!("  {}", attempt.what), word_of(&attempt.outcome).to_owned(), reason_of(&attempt.outcome).to_owned()]
}

fn word_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Refused => "refused",
        Outcome::Done => "done",
        Outcome::Failed(_) => "failed",
    }
}

fn reason_of(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Failed(reason) => reason,
        Outcome::Refused | Outcome::Done => "",
    }
}

fn json_of(checks: &[SandboxCheck], absent: Option<&str>) -> String {
    let devices: Vec<Value> = checks.iter().map(check_json).collect();
    format!("{}\n", json!({ "devices": devices, "absent": absent }))
}

fn check_json(SandboxCheck { device, tried }: &SandboxCheck) -> Value {
    match tried {
        Ok((Sandbox { landlock, has_seccomp, missing }, attempts)) => {
            let attempt = |Attempt { what, outcome }: &Attempt| json!({ "what": what, "outcome": word_of(outcome) });
            let attempts: Vec<Value> = attempts.iter().map(attempt).collect();
            json!({
                "device": device.to_string(),
                "landlock": landlock,
                "seccomp": has_seccomp,
                "missing": missing,
                "attempts": attempts,
            })
        }
        Err(error) => json!({ "device": device.to_string(), "error": error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_engine::DeviceName;

    fn check(outcome: Outcome, landlock: Option<u32>) -> SandboxCheck {
        let attempts = vec![Attempt { what: "run a program".to_owned(), outcome }];
        let sandbox = Sandbox { landlock, has_seccomp: true, missing: None };
        SandboxCheck { device: DeviceName::Cuda(0), tried: Ok((sandbox, attempts)) }
    }

    #[test]
    fn a_whole_sandbox_that_lets_something_pass_is_a_failure() {
        let escaped = complaint(&check(Outcome::Done, Some(7))).unwrap();
        assert_eq!(
            escaped,
            "cuda:0: the sandbox (Landlock 7 and seccomp) does not keep a worker from this: run a program"
        );
        assert!(complaint(&check(Outcome::Failed("no such file".to_owned()), Some(7))).is_some(), "it was not refused");
        assert_eq!(complaint(&check(Outcome::Refused, Some(7))), None);
        assert_eq!(complaint(&check(Outcome::Done, None)), None, "the sandbox was not whole");
    }
}
