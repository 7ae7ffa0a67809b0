//! The engine whose GPU holds vectors, with a small model of random weights beside them.
//! Computes nothing: it is there for the worker and the ledger.

use std::{sync::Arc, time::Duration};

use magray_device::scan::{HostRules, RowsHost};
use magray_engine::{
    DeviceChoice, EncoderOptions, GpuSelector,
    engine::{Engine, ModelSource},
};

use crate::{
    engine_start::{self, Measured},
    failure::Failure,
    terminal::Console,
};

/// Vectors are on the GPU within this time, or do not come.
pub(super) const COPIED_WITHIN: Duration = Duration::from_secs(300);

/// Starts the engine.
pub(super) fn start() -> Result<Engine, Failure> {
    let shape = "tiny".parse().map_err(|error| Failure::Usage(format!("{error}")))?;
    let encoder = EncoderOptions { device: DeviceChoice::Cuda(GpuSelector::Any), ..EncoderOptions::default() };
    let models = vec![("tiny".to_owned(), ModelSource::Synthetic(shape))];
    engine_start::start(&Measured::new(models, encoder), Console::new(false))
}

/// Its memory for vectors.
pub(super) fn host(engine: &Engine) -> Result<Arc<dyn RowsHost>, Failure> {
    let host = engine.rows_host(HostRules { bytes_min: 0, idle_max: None });
    host.ok_or_else(|| Failure::Usage("there is no GPU: leave out --gpu".to_owned()))
}
