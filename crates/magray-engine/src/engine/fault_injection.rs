//! Faults on purpose in an engine that runs, for demonstrations.
//! Nothing is injected where the engine was started without a fault plan, be it an empty one.

use super::Engine;
use crate::testing::FaultOnDemand;
use magray_core::DeviceName;

/// Why a fault was not injected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// There is no such device, or it is no simulated one.
    #[error("there is no simulated device '{device}': use {}", known.join(", "))]
    NoDevice {
        /// What was named.
        device: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// It has no worker at this moment, or one that takes no faults.
    #[error("{0} has no worker at this moment that could fail: try again when it is back")]
    NoWorker(DeviceName),
}

impl Engine {
    /// Lets a fault happen to a simulated GPU: at once, or with its next batch.
    pub fn inject(&self, device: &str, fault: FaultOnDemand) -> Result<(), InjectError> {
        let executors = self.dispatcher().executors();
        let simulated = executors.iter().filter(|executor| matches!(executor.name(), DeviceName::Simulated(_)));
        let Some(executor) = simulated.clone().find(|executor| executor.name().to_string() == device) else {
            let known = simulated.map(|executor| executor.name().to_string()).collect();
            return Err(InjectError::NoDevice { device: device.chars().take(40).collect(), known });
        };
        let is_taken = match fault.word_of_batch() {
            Some(word) => executor.order_fault(word),
            None => executor.status().pid.is_some(),
        };
        if !is_taken {
            return Err(InjectError::NoWorker(executor.name()));
        }
        if fault == FaultOnDemand::Kill {
            executor.strike();
        }
        Ok(())
    }
}
