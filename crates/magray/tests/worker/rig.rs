//! A worker for a test, and what the CPU of this process would have answered.

use magray_core::schedule::DeviceId;
use magray_engine::gpu::SandboxMode;
use magray_engine::internals::{
    Arrived, ExecutorDevice, ExecutorModel, Exit, Failure, FaultOrder, FromWorker, Holder, Images, ModelSource, Offer,
    Ready, SimulatedGpu, SpawnError, Tokens, Work, WorkerHandle, WorkerReceiver, WorkerSpec, spawn,
};
use magray_engine::{DeviceName, EncoderOptions, PrecisionChoice, SingleDevice, engine};
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
    spec: WorkerSpec,
    /// An image that was filled while something else was waited for, and its bytes.
    filled: Option<(u64, u64)>,
}

/// The worker of a test that has one.
pub(crate) const HOLDER: Holder = Holder { device: DeviceId(1), worker: 1 };

pub(crate) fn spec() -> WorkerSpec {
    WorkerSpec {
        device: ExecutorDevice::Simulated(SimulatedGpu::default()),
        models: vec![ExecutorModel::new(ModelSource::Synthetic("tiny".parse().unwrap()), PrecisionChoice::Auto)],
        models_folder: None,
        slots: 4,
        slot_tokens_max: 1024,
        slot_texts_max: 16,
        outputs_max: WIDTH,
        token_numbers_max: 0,
        memory_limit_bytes: None,
        sandbox: SandboxMode::Auto,
        faults: None,
    }
}

pub(crate) fn spec_with_faults(plan: &str) -> WorkerSpec {
    let order = FaultOrder { plan: plan.to_owned(), from: Duration::ZERO, now: Duration::ZERO, batches: 0 };
    WorkerSpec { faults: Some(order), ..spec() }
}

pub(crate) fn try_start(spec: &WorkerSpec) -> Result<Rig, SpawnError> {
    let (handle, receiver, ready) = spawn(Path::new(EXE), spec, LONG, |_| ())?;
    Ok(Rig { handle, receiver, ready, spec: spec.clone(), filled: None })
}

/// Room for the image of every model of a worker.
pub(crate) fn images(models: usize) -> Images {
    Images::new(vec![16 << 20; models])
}

impl Rig {
    /// A worker that has no model.
    pub(crate) fn open(spec: &WorkerSpec) -> Self {
        try_start(spec).unwrap()
    }

    /// A worker that has all its models.
    pub(crate) fn start(spec: &WorkerSpec) -> Self {
        let mut rig = Self::open(spec);
        for model in 0..spec.models.len() {
            rig.load(model, Offer::None).unwrap();
        }
        rig
    }

    /// Loads a model and waits for it.
    pub(crate) fn load(&mut self, model: usize, offer: Offer<'_>) -> Result<Arrived, Failure> {
        self.handle.load(model, offer).unwrap();
        self.hear_load(model)
    }

    /// Loads a model with the image that there is for it.
    pub(crate) fn load_with(&mut self, images: &Images, holder: Holder, model: usize) -> Result<Arrived, Failure> {
        self.order_with(images, holder, model);
        self.hear_load(model)
    }

    /// Orders a model with the image that there is for it.
    pub(crate) fn order_with(&mut self, images: &Images, holder: Holder, model: usize) {
        let handed = images.hand_out(model, self.spec.form(&self.spec.models[model]), holder).unwrap();
        let offer = handed.as_ref().map_or(Offer::None, |handed| handed.offer());
        self.handle.load(model, offer).unwrap();
    }

    /// What came of an order to load.
    pub(crate) fn hear_load(&mut self, model: usize) -> Result<Arrived, Failure> {
        loop {
            match self.hear().unwrap() {
                FromWorker::Loaded { model: said, arrived } if said == model => return Ok(arrived),
                FromWorker::NotLoaded { model: said, problem } if said == model => return Err(problem),
                // Filling begins while the worker still says that the model is there.
                FromWorker::ImageFilled { image, bytes, .. } => self.filled = Some((image, bytes)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until the worker says that an image is whole.
    pub(crate) fn hear_filled(&mut self, images: &Images, holder: Holder) {
        let (image, bytes) = self.filled.take().unwrap_or_else(|| match self.hear().unwrap() {
            FromWorker::ImageFilled { image, bytes, .. } => (image, bytes),
            other => panic!("{other:?}"),
        });
        assert!(images.filled(holder, image, bytes));
    }

    /// Offloads a model and waits for it; the memory that is in use then, but for what others may have.
    pub(crate) fn offload(&mut self, model: usize) -> u64 {
        self.handle.offload(model).unwrap();
        loop {
            match self.hear().unwrap() {
                FromWorker::Offloaded { model: said, memory, .. } if said == model => {
                    return memory.allocated - memory.spare;
                }
                // Nothing waits for an image.
                FromWorker::ImageFilled { image, bytes, .. } => self.filled = Some((image, bytes)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until the worker has no memory of its device in use.
    pub(crate) fn wait_until_empty(&mut self) {
        while !matches!(self.receiver.next().unwrap(), FromWorker::Heartbeat { memory, .. } if memory.allocated == 0) {}
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
            FromWorker::Failed { batch: failed, problem, .. } => {
                assert_eq!(failed, batch);
                Err(problem.code)
            }
            other => panic!("{other:?}"),
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
    let options = EncoderOptions { threads: Some(1), ..Default::default() };
    let source = engine::ModelSource::Synthetic("tiny".parse().unwrap());
    let mut model = SingleDevice::open(&source, DeviceName::Cpu, &options).unwrap();
    model.run(&engine::Work::from_ids(0, texts.to_vec())).unwrap()
}
