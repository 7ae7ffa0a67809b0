//! Logs what changed about a device that stays in rotation.
//! Decides nothing: the machine says when a device is slow, and when it is not any more.

use magray_core::DeviceName;
use magray_core::schedule::{MemoryStep, MemoryUse, Notice, SpeedFigures};

pub(super) fn log_notice(device: DeviceName, notice: Notice) {
    match notice {
        Notice::Slowed(figures) => {
            let SpeedFigures { measured, usual } = figures;
            tracing::warn!(
                target: "magray::health",
                %device,
                tokens_per_s = measured,
                usual_tokens_per_s = usual,
                "{device} computes at {} % of its speed: {measured} tokens/s where {usual} are usual; it gets less work",
                figures.percent()
            );
        }
        Notice::Regained(figures) => {
            let SpeedFigures { measured, usual } = figures;
            tracing::info!(
                target: "magray::health",
                %device,
                tokens_per_s = measured,
                usual_tokens_per_s = usual,
                "{device} is back to its speed: {measured} tokens/s where {usual} are usual; it has its full weight again"
            );
        }
        Notice::Memory { step, is_rising: true, memory } => {
            let (used, total) = mebibytes(memory);
            let done = match step {
                MemoryStep::Roomy | MemoryStep::Trimmed => "its caches are freed",
                MemoryStep::Reduced => "it gets smaller batches and less work",
                MemoryStep::Avoided => "the CPU computes what it may in its place",
            };
            let message = format!("the memory of {device} is nearly full, {used} of {total} MiB are in use: {done}");
            tracing::warn!(target: "magray::health", %device, step = step.code(), "{message}");
        }
        Notice::Memory { step, is_rising: false, memory } => {
            let (used, total) = mebibytes(memory);
            let done = match step {
                MemoryStep::Roomy => "all is as before",
                MemoryStep::Trimmed => "it gets full batches and all of its work again",
                MemoryStep::Reduced | MemoryStep::Avoided => "it is used again, with smaller batches",
            };
            let message = format!("the memory of {device} has room again, {used} of {total} MiB are in use: {done}");
            tracing::info!(target: "magray::health", %device, step = step.code(), "{message}");
        }
        Notice::Untested => tracing::info!(
            target: "magray::health",
            %device,
            "{device} was slow, and nothing could be measured since: it has its full weight again, to be measured"
        ),
    }
}

fn mebibytes(memory: MemoryUse) -> (u64, u64) {
    (memory.used >> 20, memory.total >> 20)
}
