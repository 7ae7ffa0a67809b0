//! The health of GPUs: telemetry, who watches it, who is told, and which GPUs are out of service.
//! Decides nothing: `magray_core::health` judges, and the scheduler draws the conclusions.

mod alert;
mod group;
mod ledger;
mod monitor;
mod nvml;
mod timestamps;

pub use alert::{Alert, AlertOptions, Alerts};
pub use group::GroupSource;
pub use ledger::{Ledger, LedgerError, Outage};
pub use magray_core::health::{HealthRules, HealthSample, Judge, ThrottleReasons, XidKind};
pub use monitor::{Monitor, MonitorOptions};
pub use nvml::NvmlSource;
pub use timestamps::{host_name, utc, utc_of};

/// Where samples of GPUs come from.
pub trait HealthSource: Send {
    /// How a GPU is now, by its place in the list that the source was made with. Of an unknown place, nothing.
    fn sample(&mut self, gpu: usize) -> HealthSample;
}

impl<F: FnMut(usize) -> HealthSample + Send> HealthSource for F {
    fn sample(&mut self, gpu: usize) -> HealthSample {
        self(gpu)
    }
}
