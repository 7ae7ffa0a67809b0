//! Logs what changed about a device that stays in rotation.
//! Decides nothing: the machine says when a device is slow, and when it is not any more.

use magray_core::DeviceName;
use magray_core::schedule::{Notice, SpeedFigures};

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
        Notice::Untested => tracing::info!(
            target: "magray::health",
            %device,
            "{device} was slow, and nothing could be measured since: it has its full weight again, to be measured"
        ),
    }
}
