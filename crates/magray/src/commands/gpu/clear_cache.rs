//! `magray gpu clear-cache`: frees memory of the GPUs that an engine caches.
//! Moves no model.

use clap::Args;
use serde_json::json;

use super::{
    super::Context,
    moves::{EngineArgs, pick},
    status::unexpected,
    words::size,
};
use crate::{
    control::{ClearedDevice, Reply, Request},
    exit::Failure,
    output,
};

const EXAMPLES: &str = "\
Examples:
  magray gpu clear-cache
  magray gpu clear-cache --pid 4711 --json

Frees what the memory pools of the GPUs hold and do not use, after the batches that run. Models stay; the next batch takes \
the memory that it needs again.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GpuClearCacheArgs {
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(GpuClearCacheArgs { engine: args }: &GpuClearCacheArgs, context: &Context) -> Result<(), Failure> {
    let engine = pick(&context.settle(&[])?, args.pid)?;
    let pid = engine.running.pid;
    let devices = match engine.running.ask(&Request::ClearCache {})? {
        Reply::Cleared(cleared) => cleared.devices,
        other => return Err(unexpected(pid, &other).into()),
    };
    let text = match args.json {
        true => format!("{}\n", json!({ "pid": pid, "devices": devices })),
        false if devices.is_empty() => "there is no GPU\n".to_owned(),
        false => devices.iter().map(line).collect(),
    };
    Ok(output::print(&text)?)
}

fn line(ClearedDevice { device, freed_bytes }: &ClearedDevice) -> String {
    match freed_bytes {
        Some(bytes) => format!("{device} gave {} back\n", size(*bytes)),
        None => format!("{device} still computes, and gives its cached memory back after that\n"),
    }
}
