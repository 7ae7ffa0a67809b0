//! Lets the workers that an engine would start try what their sandbox must refuse.
//! Starts no engine and computes nothing.

use super::devices::{self, Gpu};
use super::{EngineModel, EngineOptions};
use crate::encoder::LoadError;
use crate::executors::ExecutorModel;
use crate::worker::{Attempt, Sandbox, SpawnError, WorkerSpec, try_sandbox};
use magray_core::{DeviceName, Reason};

/// How a worker of one GPU is confined.
#[derive(Debug)]
pub struct SandboxCheck {
    /// The GPU.
    pub device: DeviceName,
    /// What confines its worker and what came of what it tried; or why there was no worker.
    pub tried: Result<(Sandbox, Vec<Attempt>), SpawnError>,
}

/// Starts a worker for each GPU that an engine with these options would use, one after the other, and lets it try what it
/// must not do. Where there is no GPU: why.
pub fn check_sandbox(options: &EngineOptions) -> Result<(Vec<SandboxCheck>, Option<Reason>), LoadError> {
    let found = devices::find(options)?;
    let models: Vec<ExecutorModel> = options.models.iter().map(|model| worker_model(model, options)).collect();
    let check = |gpu: &Gpu| {
        let spec = WorkerSpec {
            device: gpu.device.clone(),
            models: models.clone(),
            models_folder: options.models_folder.clone(),
            // It gets no batch.
            slots: 1,
            slot_tokens_max: 1,
            slot_texts_max: 1,
            outputs_max: 1,
            token_numbers_max: 0,
            memory_limit_bytes: options.encoder.gpu.rules.memory_limit_bytes,
            sandbox: options.encoder.gpu.sandbox,
            faults: None,
        };
        let tried = try_sandbox(&options.worker_exe, &spec, options.schedule.recovery.start_max);
        SandboxCheck { device: gpu.name, tried }
    };
    Ok((found.gpus.iter().map(check).collect(), found.reason.filter(Reason::is_fallback)))
}

fn worker_model(model: &EngineModel, options: &EngineOptions) -> ExecutorModel {
    ExecutorModel { kv: options.encoder.kv, ..ExecutorModel::new(model.source.clone(), options.encoder.precision) }
}
