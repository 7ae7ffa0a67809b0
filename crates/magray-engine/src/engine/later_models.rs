//! Models that come after the start, and those that go for good.
//! Loads nothing: a model that came is loaded by its first request, as those of the start are.

use super::division::{Dividing, Division};
use super::images::{Images, image_bytes_max};
use super::models::CpuPacker;
use super::{Engine, EngineError, EngineModel, ModelPlan, calibrate, devices, division};
use crate::decoder::SPECULATE_MAX;
use crate::encoder::LoadError;
use crate::executors::{ExecutorModel, LayersOnGpu};
use crate::reading::Reader;
use crate::roster::Roster;
use crate::spec::ModelSpec;
use magray_core::schedule::{DeviceId, PartInWorkers};
use magray_core::{DeviceName, Precision, PrecisionChoice};
use magray_device::KvFormat;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// New tokens of a step of a language model: as many as are proposed for a pass, and the one that it gives in any case. Devices may give fewer.
const STEP_TOKENS: u32 = SPECULATE_MAX as u32 + 1;

/// What devices are told of a model that comes.
pub(super) struct LaterModels {
    /// One comes at a time, so that its number is the same everywhere.
    pub(super) adding: Mutex<()>,
    pub(super) images: Arc<Images>,
    /// What workers are told of all models.
    pub(super) in_workers: Arc<Roster<ExecutorModel>>,
    /// What the arithmetic of GPUs was asked to be.
    pub(super) asked: PrecisionChoice,
    /// How the keys and values of sequences are kept.
    pub(super) kv: KvFormat,
    /// What the arithmetic of GPUs is expected to be.
    pub(super) expected: Precision,
    /// The device of models in ONNX form; `None`: the engine was started without one.
    pub(super) onnx_home: Option<DeviceId>,
    /// How language models are divided between the CPU and the GPUs.
    pub(super) dividing: Dividing,
    /// By model: where its layers are, where that is to be told.
    pub(super) layers: Roster<Option<LayersOnGpu>>,
    /// By model: what it was granted of the host's memory.
    pub(super) in_host: Roster<u64>,
    /// Whether a GPU has memory for the state of sequences.
    pub(super) gpus_generate: bool,
    /// Whether all that have keep keys and values like this.
    pub(super) gpus_keep: bool,
    /// What a worker's slot has room for; `None`: there are no workers.
    pub(super) slot: Option<SlotRoom>,
    /// By model: whether it has gone.
    pub(super) gone: Roster<AtomicBool>,
}

/// The largest text and answer that fit the slot of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRoom {
    pub(super) tokens: usize,
    /// Tokens of the longest known text, which rides along.
    pub(super) known: usize,
    pub(super) outputs: usize,
    /// Numbers of an answer that has a row for each token.
    pub(super) token_numbers: usize,
}

impl LaterModels {
    /// What is decided by of a model with weights of this size.
    pub(super) fn plan(&self, model: &EngineModel, spec: &ModelSpec, bytes: u64, division: &Division) -> ModelPlan {
        let home = devices::home(&model.source, self.onnx_home, self.gpus_generate && !division.is_kept_off);
        let copies = self.dividing.copies();
        let on_first = || PartInWorkers { bytes: bytes.saturating_mul(copies), kv_token_bytes: 1 };
        ModelPlan {
            bytes,
            in_workers: division.in_workers.or_else(|| (copies > 1).then(on_first)),
            home,
            kv_token_bytes: spec.generates().map_or(1, |generate| generate.kv_token_bytes(self.kv)),
            step_tokens_max: if spec.generates().is_some() { STEP_TOKENS } else { 1 },
            ..model.plan
        }
    }

    pub(super) fn is_gone(&self, model: usize) -> bool {
        self.gone.get(model).is_some_and(|is_gone| is_gone.load(Ordering::Acquire))
    }

    /// Whether workers have room for a row of each token of any batch of a model.
    pub(super) fn takes_token_rows(&self, hidden: usize) -> bool {
        let rows = |slot: SlotRoom| (slot.tokens + slot.known).saturating_mul(hidden) <= slot.token_numbers;
        self.slot.is_some_and(rows)
    }

    fn check_slot(&self, reader: &Reader) -> Result<(), LoadError> {
        let (tokens, outputs) = (reader.spec.max_tokens, reader.spec.outputs());
        match self.slot {
            Some(slot) if tokens > slot.tokens || outputs > slot.outputs => {
                Err(LoadError::TooLarge { tokens, outputs })
            }
            _ => Ok(()),
        }
    }
}

impl Engine {
    /// Adds a model to those that the engine was started with; returns its number. Waits while its description and its
    /// tokenizer are read. Requests for others go on meanwhile. GPU workers can load it where they may read its folder:
    /// one below [`super::EngineOptions::models_folder`].
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource, Work};
    /// # use std::time::Duration;
    /// let tiny = ModelSource::Synthetic("tiny".parse()?);
    /// let engine = Engine::start(EngineOptions::on_cpu(vec![tiny.clone().into()]))?;
    /// let second = engine.add_model(tiny.into())?;
    /// engine.process(Work::from_ids(second, vec![vec![5, 6, 7]]))?;
    /// engine.remove_model(second, Duration::from_secs(60))?;
    /// assert!(engine.process(Work::from_ids(second, vec![vec![5, 6, 7]])).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_model(&self, model: EngineModel) -> Result<usize, LoadError> {
        let running = &*self.0;
        let (later, packer) = (&running.later, running.choices.packer());
        let reader = CpuPacker::read(&model)?;
        later.check_slot(&reader)?;
        if model.source.is_onnx() && later.onnx_home.is_none() {
            return Err(LoadError::NoOnnx);
        }
        let model = EngineModel { assigned: division::assigned(&model, running.choices.gpu_layers())?, ..model };
        if model.source.is_decoder() && !later.gpus_keep && model.assigned != Some(DeviceName::Cpu) {
            return Err(LoadError::KvBits);
        }
        let _only_one = later.adding.lock().unwrap_or_else(PoisonError::into_inner);
        packer.has_room()?;
        running.choices.check_assigned(model.assigned)?;
        let mut division = later.dividing.of(&model, &reader.spec)?;
        // The first of these may fail; from then on they do not, since all have as much room as it.
        packer.add(&model, &reader)?;
        later.dividing.take(&division);
        later.dividing.stand_in(&mut division);
        later.in_host.push(division.in_host())?;
        division.tell(&model.name);
        let bytes = packer.bytes(running.readers.len(), later.expected);
        let plan = later.plan(&model, &reader.spec, bytes, &division);
        let Division { split, group, told, is_off_cpu, .. } = division;
        let (source, precision, kv) = (model.source, later.asked, later.kv);
        later.in_workers.push(ExecutorModel { source, precision, kv, split, group })?;
        later.layers.push(told)?;
        later.images.add(image_bytes_max(&reader.spec))?;
        later.gone.push(AtomicBool::new(false))?;
        running.choices.add(model.assigned)?;
        if is_off_cpu {
            running.choices.keep_off_cpu(running.readers.len());
            packer.keep_off(running.readers.len());
        }
        let number = running.readers.push(reader)?;
        self.dispatcher().profiling().model(number, &model.name);
        self.dispatcher().add_model(ModelPlan { is_preloaded: false, ..plan });
        calibrate::calibrate_in_background(self)?;
        Ok(number)
    }

    /// Takes no work for a model any more, lets what was taken end, and takes the model out of all memory. Its number is not
    /// used again. What has not ended after `most` is refused.
    pub fn remove_model(&self, model: usize, most: Duration) -> Result<(), EngineError> {
        let gone = self.0.later.gone.get(model).ok_or(EngineError::NoModel(model))?;
        if gone.swap(true, Ordering::AcqRel) {
            return Err(EngineError::NoModel(model));
        }
        let started = Instant::now();
        self.dispatcher().wait_until_unused(model, most);
        match self.dispatcher().remove_model(model, most.saturating_sub(started.elapsed())) {
            true => {
                self.0.later.dividing.give_back(self.0.later.in_host[model]);
                Ok(())
            }
            // Its memory counts as taken from then on: no one is told when it has left.
            false => Err(EngineError::NotYet { within: most }),
        }
    }

    /// Whether there is such a model, and it has not gone.
    pub fn has_model(&self, model: usize) -> bool {
        model < self.0.readers.len() && !self.0.later.is_gone(model)
    }
}
