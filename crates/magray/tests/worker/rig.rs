//! A worker for a test, and what the CPU of this process would have answered.

use magray_engine::testing::{
    Exit, FaultOrder, FromWorker, ModelSource, Ready, SimulatedGpu, SpawnError, Tokens, Work, WorkerDevice,
    WorkerHandle, WorkerModel, WorkerReceiver, WorkerSpec, spawn,
};
use magray_engine::{CpuPath, DeviceChoice, Encoder, EncoderOptions, PrecisionChoice};
use std::path::Path;
use std::time::Duration;

pub(crate) const EXE: &str = env!("CARGO_BIN_EXE_magray");
/// Far longer than any start takes: a test that reaches it fails.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// Numbers in an answer of the tiny model.
pub(crate) const WIDTH: usize = 64;

/// A worker with a tiny model.
pub(crate) struct Rig {
    pub(crate) handle: WorkerHandle,
    pub(crate) receiver: WorkerReceiver,
    pub(crate) ready: Ready,
}

pub(crate) fn spec() -> WorkerSpec {
    WorkerSpec {
        device: WorkerDevice::Simulated(SimulatedGpu::default()),
        models: vec![WorkerModel {
            source: ModelSource::Synthetic("tiny".parse().unwrap()),
            precision: PrecisionChoice::Auto,
        }],
        slots: 4,
        slot_tokens_max: 1024,
        slot_texts_max: 16,
        faults: None,
    }
}

pub(crate) fn spec_with_faults(plan: &str) -> WorkerSpec {
    let order = FaultOrder { plan: plan.to_owned(), from: Duration::ZERO, now: Duration::ZERO, batches: 0 };
    WorkerSpec { faults: Some(order), ..spec() }
}

pub(crate) fn try_start(spec: &WorkerSpec) -> Result<Rig, SpawnError> {
    spawn(Path::new(EXE), spec, LONG, |_| ()).map(|(handle, receiver, ready)| Rig { handle, receiver, ready })
}

impl Rig {
    pub(crate) fn start(spec: &WorkerSpec) -> Self {
        try_start(spec).unwrap()
    }

    pub(crate) fn submit(&self, batch: u64, slot: usize, texts: &[Vec<u32>]) {
        let texts: Vec<Tokens<'_>> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
        self.handle.submit(Work { batch, slot, model: 0, skip: 0, texts: &texts }).unwrap();
    }

    /// The next message that is no heartbeat.
    pub(crate) fn hear(&mut self) -> Result<FromWorker, Exit> {
        loop {
            match self.receiver.next() {
                Ok(FromWorker::Heartbeat { .. }) => {}
                other => return other,
            }
        }
    }

    /// Computes a batch in the first slot; its rows, or the code of its failure.
    pub(crate) fn compute(&mut self, batch: u64, texts: &[Vec<u32>]) -> Result<Vec<f32>, String> {
        self.submit(batch, 0, texts);
        match self.hear().unwrap() {
            FromWorker::Finished { batch: finished, slot, .. } => {
                assert_eq!((finished, slot), (batch, 0));
                Ok(self.rows(0, texts.len()))
            }
            FromWorker::Failed { batch: failed, code, .. } => {
                assert_eq!(failed, batch);
                Err(code)
            }
            FromWorker::Heartbeat { .. } => unreachable!("left out above"),
        }
    }

    pub(crate) fn rows(&self, slot: usize, texts: usize) -> Vec<f32> {
        let mut rows = vec![0.0; texts * WIDTH];
        self.handle.read_rows(slot, &mut rows);
        rows
    }

    /// Stops it and says how it ended.
    pub(crate) fn stop(mut self) -> Exit {
        self.handle.stop();
        self.end()
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> Exit {
        loop {
            if let Err(exit) = self.receiver.next() {
                return exit;
            }
        }
    }
}

/// Texts of odd lengths; other numbers give other texts.
pub(crate) fn texts(count: usize, number: u32) -> Vec<Vec<u32>> {
    (0..count as u32)
        .map(|text| (0..1 + (text * 7 + number) % 40).map(|at| (at * 31 + text + number) % 990).collect())
        .collect()
}

/// What the CPU of this process answers.
pub(crate) fn expected(texts: &[Vec<u32>]) -> Vec<f32> {
    let options =
        EncoderOptions { threads: Some(1), device: DeviceChoice::Cpu, cpu_path: None::<CpuPath>, ..Default::default() };
    let mut encoder = Encoder::synthetic("tiny".parse().unwrap(), &options).unwrap();
    encoder.embed_ids(texts).unwrap().values
}
