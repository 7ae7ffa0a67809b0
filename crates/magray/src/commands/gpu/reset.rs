//! `magray gpu reset`: returns a GPU that was given up to service.
//! Touches no hardware: it forgets what was held against a GPU, in the file that all processes read.

use clap::Args;
use magray_engine::{
    DeviceChoice, GpuSelector,
    gpu::{self, GpuOptions},
    health::{Ledger, Outage, utc_of},
};
use serde_json::{Value, json};

use super::super::Context;
use crate::{exit::Failure, output};

const EXAMPLES: &str = "\
Examples:
  magray gpu reset                  every GPU that is out of service
  magray gpu reset cuda:0
  magray gpu reset cuda:GPU-8f1a    by UUID, also one that is not in the machine any more

A GPU that failed too often, or returned wrong answers, is out of service until it is reset, also for later processes. \
A server that runs takes it back within a second, once it computes a known text rightly.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GpuResetArgs {
    /// The GPU: cuda:NUMBER or cuda:UUID [default: all that are out]
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

struct Meant {
    uuid: String,
    label: String,
}

pub(crate) fn run(args: &GpuResetArgs, context: &Context) -> Result<(), Failure> {
    let options = context.settle(&[])?.gpu();
    let mut ledger = Ledger::open(options.state_file.clone());
    let meant = args.device.as_deref().map(|word| find(word, &ledger, &options)).transpose()?;
    let returned = ledger.reset(meant.as_ref().map(|gpu| gpu.uuid.as_str()))?;
    let text = if args.json { json_of(&returned) } else { text_of(&returned, meant.as_ref()) };
    Ok(output::print(&text)?)
}

/// The GPU that a word names, by the ledger where it is there, else by the driver.
fn find(word: &str, ledger: &Ledger, options: &GpuOptions) -> Result<Meant, Failure> {
    let choice: DeviceChoice = word.parse().map_err(|error| Failure::Usage(format!("{error}")))?;
    if !matches!(choice, DeviceChoice::Cuda(_)) {
        return Err(Failure::Usage(format!("'{word}' is never out of service: name a GPU, such as cuda:0")));
    }
    if let DeviceChoice::Cuda(GpuSelector::Uuid(start)) = &choice {
        let is_meant = |outage: &Outage| {
            outage.uuid.get(..start.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(start))
        };
        let mut known = ledger.outages().into_iter().filter(is_meant);
        match (known.next(), known.next()) {
            (Some(outage), None) => return Ok(Meant { label: outage.uuid.clone(), uuid: outage.uuid }),
            (Some(_), Some(_)) => {
                return Err(Failure::Usage(format!("'{word}' names several GPUs: write more of the UUID")));
            }
            (None, _) => {}
        }
    }
    let info = gpu::find(&choice, options).map_err(Failure::NoSuchGpu)?;
    Ok(Meant { label: format!("cuda:{} ({}, {})", info.index, info.name, info.uuid), uuid: info.uuid })
}

fn text_of(returned: &[Outage], meant: Option<&Meant>) -> String {
    let label = |outage: &Outage| meant.map_or_else(|| outage.uuid.clone(), |gpu| gpu.label.clone());
    let line = |outage: &Outage| {
        let Outage { since_unix_s, code, message, .. } = outage;
        format!(
            "{} is back in service; it was out since {}: {message} ({code})\n",
            label(outage),
            utc_of(*since_unix_s)
        )
    };
    match (returned, meant) {
        ([], Some(gpu)) => format!("{} is not out of service\n", gpu.label),
        ([], None) => "no GPU is out of service\n".to_owned(),
        (returned, _) => returned.iter().map(line).collect(),
    }
}

fn json_of(returned: &[Outage]) -> String {
    let returned: Vec<Value> = returned.iter().map(outage_json).collect();
    format!("{}\n", json!({ "returned": returned }))
}

pub(super) fn outage_json(outage: &Outage) -> Value {
    json!({
        "uuid": outage.uuid,
        "since": utc_of(outage.since_unix_s),
        "reason": outage.code,
        "message": outage.message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn outage() -> Outage {
        Outage {
            uuid: "GPU-1234".to_owned(),
            since_unix_s: 1_767_225_599,
            code: "wrong_answers".to_owned(),
            message: "it returned wrong answers".to_owned(),
        }
    }

    #[test]
    fn it_says_what_a_gpu_was_out_for() {
        let meant = Meant { uuid: "GPU-1234".to_owned(), label: "cuda:0 (NVIDIA H200, GPU-1234)".to_owned() };
        expect![[r#"
            cuda:0 (NVIDIA H200, GPU-1234) is back in service; it was out since 2025-12-31T23:59:59Z: it returned wrong answers (wrong_answers)
        "#]]
        .assert_eq(&text_of(&[outage()], Some(&meant)));
        expect![[r#"
            cuda:0 (NVIDIA H200, GPU-1234) is not out of service
        "#]]
        .assert_eq(&text_of(&[], Some(&meant)));
    }
}
