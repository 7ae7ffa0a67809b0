//! Models of the built-in executors, on the CPU, on a GPU or on a simulated one: they come, leave and come back.
//! Knows no device: what differs between devices is behind two traits.

use super::feed::Feed;
use super::held_weights::HeldWeights;
use super::run_one_by_one;
use super::{Arrival, Arriving, Executor, ExecutorModel, Failure, FailureKind, FilledImage, HeldVectors};
use super::{
    GroupLayout, InjectedFault, Label, LayerSplit, ModelSource, NewTokens, OnFilled, Origin, Outcomes, RankSums,
    SequenceStep, Steps, UnderWay,
};
use crate::gpu::{GpuError, MemoryStats};
use crate::model::{Synthetic, TensorSource};
use crate::packed::Tokens;
use crate::roster::Roster;
use crate::spec::ModelSpec;
use crate::weights::Weights;
use magray_core::{Precision, PrecisionChoice};
use magray_device::cuda::{CudaError, DeviceError};
use magray_device::{KvFormat, SharedMemory};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A device that models are loaded on.
pub(crate) trait NativeDevice: Send + Sync {
    fn label(&self) -> Label;

    /// Its memory, without what belongs to models that are away.
    fn memory(&self) -> MemoryStats;

    /// Puts a model on it.
    fn load(&self, loading: Loading<'_>) -> Result<Hosted, Failure>;

    /// Whether weights can come from images.
    fn takes_images(&self) -> bool {
        true
    }

    /// Makes it usable from the calling thread.
    fn bind(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Takes memory for vectors of this length.
    fn hold_vectors(&self, _dims: usize, _room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        Err(Failure::unsupported("room for vectors"))
    }

    /// A batch is about to come.
    fn rouse(&self) {}

    /// Gives back what is not needed any more.
    fn tend(&self) {}
}

/// A model that is to be put on a device.
pub(crate) struct Loading<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) precision: PrecisionChoice,
    pub(crate) kv: KvFormat,
    pub(crate) split: Option<LayerSplit>,
    pub(crate) group: Option<&'a GroupLayout>,
    /// Opens the model's files.
    pub(crate) source: &'a dyn Fn() -> Result<Box<dyn TensorSource>, Failure>,
    pub(crate) image: Option<FilledImage>,
}

/// A model that was loaded; its weights may have left the device since.
pub(crate) struct Hosted {
    pub(crate) model: Box<dyn NativeModel>,
    pub(crate) precision: Precision,
    /// Where the ranks of a group add up their parts of sums.
    pub(crate) sums: Option<RankSums>,
    /// How often what it takes counts: as often as a group has GPUs where it is on one of them alone.
    pub(crate) counts: u64,
}

impl Hosted {
    /// A model that the first device of a group has alone: no other model can have as much of the others.
    pub(crate) fn on_first_of(self, devices: usize) -> Self {
        Self { counts: devices as u64, ..self }
    }

    /// What passes of it hold.
    fn workspace_bytes(&self) -> u64 {
        self.model.workspace_bytes().saturating_mul(self.counts)
    }

    /// What its weights take when they are there.
    fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes().saturating_mul(self.counts)
    }
}

/// A model on a device.
pub(crate) trait NativeModel: Send {
    /// Numbers in a text's answer.
    fn outputs(&self) -> usize;

    /// Computes the answers of all texts, in their order; `skip` leading tokens of each are not pooled.
    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError>;

    /// As [`NativeModel::run`], with rows that are not scaled.
    fn run_unscaled(&mut self, _: &[Tokens<'_>], _skip: usize, _: &mut Vec<f32>) -> Result<(), GpuError> {
        Err(unsupported("no_unscaled_rows"))
    }

    /// Computes one row a token, in the order of the texts.
    fn run_tokens(&mut self, _: &[Tokens<'_>], _: &mut Vec<f32>) -> Result<(), GpuError> {
        Err(unsupported("no_token_rows"))
    }

    /// Computes steps of sequences and keeps their state. Encoders cannot.
    fn advance(&mut self, _: &[SequenceStep<'_>], _: &mut Vec<NewTokens>) -> Result<(), Failure> {
        Err(unsupported("no_decoder").into())
    }

    /// Computes jobs until no more are at hand.
    fn run_all(&mut self, feed: &dyn Feed) {
        run_one_by_one(feed, |texts, skip, outcomes| {
            outcomes.rows.resize(texts.len() * self.outputs(), 0.0);
            Ok(self.run(texts, skip, &mut outcomes.rows)?)
        });
    }

    /// Begins to compute texts beside others that are under way; `None`: it cannot now.
    fn begin(&mut self, _: &[Tokens<'_>], _skip: usize) -> Result<Option<usize>, GpuError> {
        Ok(None)
    }

    /// Whether what was begun under this key is computed.
    fn is_done(&mut self, _key: usize) -> bool {
        true
    }

    /// Waits for what was begun under this key, and writes its rows.
    fn finish(&mut self, _key: usize, _rows: &mut Vec<f32>) -> Result<(), GpuError> {
        Err(unsupported("nothing_under_way"))
    }

    /// Lets go of the state of a sequence.
    fn free(&mut self, _: u64) {}

    /// Frees all memory that passes have taken; the next ones take what they need.
    fn trim(&mut self) {}

    /// Time goes on, about a second, and no batch runs: what no batch of late needed is given back.
    fn tend(&mut self) {}

    /// Lets the device fail on purpose; of a group that of this number, counted round them.
    fn inject(&mut self, _: InjectedFault, _rank: usize) -> Result<(), GpuError> {
        Ok(())
    }

    /// What the weights take of the device's memory when they are there.
    fn weight_bytes(&self) -> u64;

    /// Memory that passes hold, also while the weights are away.
    fn workspace_bytes(&self) -> u64 {
        0
    }

    /// The weights, where they can leave the device by themselves.
    fn weights(&self) -> Option<&dyn HeldWeights> {
        None
    }

    /// The same, to move them.
    fn weights_mut(&mut self) -> Option<&mut (dyn HeldWeights + 'static)> {
        None
    }

    /// The weights are about to leave: waits for passes, and gives back what is of no use without them.
    fn rest(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether the weights have memory on the device; they may still be arriving.
    fn is_resident(&self) -> bool {
        self.weights().is_none_or(HeldWeights::is_resident)
    }

    /// Takes the weights from the device and keeps everything else; an image that is being filled goes on.
    fn offload(&mut self) -> Result<(), Failure> {
        self.rest()?;
        match self.weights_mut() {
            Some(weights) => Ok(weights.offload()?),
            None => Err(GpuError::Residency(DeviceError::CannotPark).into()),
        }
    }
}

fn unsupported(name: &str) -> GpuError {
    CudaError::Other { code: 0, name: name.to_owned() }.into()
}

/// An executor of a built-in device. Its models are reached from several threads: one computes, others bring and take them.
pub(crate) struct Native {
    device: Box<dyn NativeDevice>,
    models: Roster<Known>,
}

/// A model that may be loaded.
struct Known {
    model: ExecutorModel,
    /// What its files say of it; `None`: they are read whenever it is loaded.
    spec: Option<ModelSpec>,
    /// Empty where it is not loaded, and while it is loading.
    place: Mutex<Option<Hosted>>,
}

impl Native {
    pub(crate) fn new(
        device: Box<dyn NativeDevice>,
        models: impl Iterator<Item = (ExecutorModel, Option<ModelSpec>)>,
    ) -> Self {
        let models = models.map(|(model, spec)| Known { model, spec, place: Mutex::new(None) });
        Self { device, models: models.collect() }
    }

    /// The model, if it is loaded, until the caller lets go of it. An unknown one is a bug.
    fn place(&self, model: usize) -> MutexGuard<'_, Option<Hosted>> {
        self.models[model].place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, model: usize, mut hosted: Hosted) -> Result<Hosted, Failure> {
        match self.make_room_for(|| Ok(hosted.model.weights_mut().map_or(Ok(()), HeldWeights::wake)?)) {
            Ok(()) => Ok(hosted),
            Err(failure) => {
                // Room may come: then it wakes. After anything else it is better begun anew.
                if failure.kind == FailureKind::OutOfMemory {
                    *self.place(model) = Some(hosted);
                }
                Err(failure)
            }
        }
    }

    /// Does something that takes memory. Where there is too little, models that are away give up what their passes had
    /// taken, and it is tried once more.
    fn make_room_for<T>(&self, mut act: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
        let mut has_more = false;
        match act() {
            Err(failure) if failure.kind == FailureKind::OutOfMemory => {
                self.for_parked(|parked| {
                    has_more |= parked.workspace_bytes() > 0;
                    parked.model.trim();
                });
                if has_more { act() } else { Err(failure) }
            }
            done => done,
        }
    }

    /// Looks at every model that was loaded and is away; those that are in use are left out.
    fn for_parked(&self, mut look: impl FnMut(&mut Hosted)) {
        for known in self.models.iter() {
            if let Ok(mut place) = known.place.try_lock()
                && let Some(hosted) = place.as_mut().filter(|hosted| !hosted.model.is_resident())
            {
                look(hosted);
            }
        }
    }

    /// Loads a model that was not there before: from the image if that is of use, else from its files. Says what was wrong
    /// with the image.
    fn load_new(&self, model: usize, image: Option<FilledImage>) -> Result<(Hosted, Origin, Option<Failure>), Failure> {
        let known = &self.models[model];
        let spec = match &known.spec {
            Some(spec) => spec,
            None => &known.model.source.spec().map_err(Failure::of_model)?,
        };
        let source = || source_of(&known.model.source, spec);
        let ExecutorModel { precision, kv, split, ref group, .. } = known.model;
        let group = group.as_ref();
        let load = |image| self.device.load(Loading { spec, precision, kv, split, group, source: &source, image });
        let Some(image) = image.filter(|_| self.device.takes_images()) else {
            return Ok((self.make_room_for(|| load(None))?, Origin::Files, None));
        };
        match self.make_room_for(|| load(Some(image.mapped_anew()?))) {
            Ok(hosted) => Ok((hosted, Origin::Image, None)),
            // The files are still there.
            Err(failure) if failure.code == Failure::IMAGE_SPOILT => {
                Ok((self.make_room_for(|| load(None))?, Origin::Files, Some(failure)))
            }
            Err(failure) => Err(failure),
        }
    }
}

impl Executor for Native {
    fn label(&self) -> Label {
        self.device.label()
    }

    fn add(&self, model: ExecutorModel) -> Result<(), Failure> {
        self.models.push(Known { model, spec: None, place: Mutex::new(None) }).map(drop).map_err(Failure::of_model)
    }

    /// Meanwhile the model's place is empty, and no other model waits for it.
    fn load(&self, model: usize, image: Option<FilledImage>) -> Result<Arrival, Failure> {
        self.device.bind()?;
        let there = self.place(model).take();
        let (hosted, origin, image_failure) = match there {
            Some(hosted) if hosted.model.is_resident() => (hosted, Origin::Device, None),
            Some(mut hosted) => {
                let mut origin = Origin::Files;
                if let Some(weights) = hosted.model.weights_mut() {
                    if let Some(image) = image.filter(|_| !weights.has_image()) {
                        weights.take_image(image);
                    }
                    origin = if weights.has_image() { Origin::Parked } else { Origin::Files };
                }
                (self.wake(model, hosted)?, origin, None)
            }
            None => self.load_new(model, image)?,
        };
        let Hosted { model: loaded, precision, sums, .. } = &hosted;
        let (precision, outputs, bytes) = (*precision, loaded.outputs(), hosted.weight_bytes());
        let sums = sums.clone();
        let arriving = loaded.weights().and_then(HeldWeights::arriving);
        *self.place(model) = Some(hosted);
        Ok(Arrival { arriving, image_failure, sums, ..Arrival::new(precision, outputs, bytes, origin) })
    }

    fn offload(&self, model: usize) {
        // A device that cannot be reached any more has nothing to free.
        let _ = self.device.bind();
        let Some(mut hosted) = self.place(model).take() else { return };
        if hosted.model.offload().is_ok() && !hosted.model.is_resident() {
            *self.place(model) = Some(hosted);
        }
        // Else it goes as a whole, and its weights with it: the next load begins from the start. Where the device is
        // broken, that load will say so.
    }

    fn release(&self, model: usize) {
        // A device that cannot be reached any more has nothing to free.
        let _ = self.device.bind();
        let hosted = self.place(model).take();
        drop(hosted);
    }

    fn run(&self, model: usize, steps: Steps<'_>, outcomes: &mut Outcomes) -> Result<(), Failure> {
        let mut place = self.place(model);
        let hosted = place.as_mut().filter(|hosted| hosted.model.is_resident());
        let model = &mut hosted.ok_or_else(Failure::not_loaded)?.model;
        let Outcomes { rows, new_tokens, waited } = outcomes;
        new_tokens.clear();
        let (ran, took) = while_arriving(model.weights().and_then(HeldWeights::arriving), || match steps {
            Steps::Texts { texts, skip } => {
                rows.resize(texts.len() * model.outputs(), 0.0);
                Ok(model.run(texts, skip, rows)?)
            }
            Steps::Unscaled { texts, skip } => Ok(model.run_unscaled(texts, skip, rows)?),
            Steps::EachToken(texts) => Ok(model.run_tokens(texts, rows)?),
            Steps::Parts(steps) => model.advance(steps, new_tokens),
        });
        *waited = took;
        ran
    }

    fn begin(&self, model: usize, texts: &[Tokens<'_>], skip: usize) -> Result<Option<UnderWay>, Failure> {
        match &mut *self.place(model) {
            Some(hosted) if hosted.model.is_resident() => {
                let key = hosted.model.begin(texts, skip)?;
                Ok(key.map(|key| UnderWay { model, key }))
            }
            _ => Err(Failure::not_loaded()),
        }
    }

    fn is_done(&self, under_way: &UnderWay) -> bool {
        self.place(under_way.model).as_mut().is_none_or(|hosted| hosted.model.is_done(under_way.key))
    }

    fn finish(&self, under_way: UnderWay, outcomes: &mut Outcomes) -> Result<(), Failure> {
        outcomes.new_tokens.clear();
        outcomes.waited = Duration::ZERO;
        match &mut *self.place(under_way.model) {
            Some(hosted) => Ok(hosted.model.finish(under_way.key, &mut outcomes.rows)?),
            None => Err(Failure::not_loaded()),
        }
    }

    fn run_all(&self, model: usize, feed: &dyn Feed) {
        match &mut *self.place(model) {
            Some(hosted) if hosted.model.is_resident() => hosted.model.run_all(feed),
            _ => run_one_by_one(feed, |_, _, _| Err(Failure::not_loaded())),
        }
    }

    fn memory(&self) -> MemoryStats {
        let mut memory = self.device.memory();
        self.for_parked(|parked| memory.spare = memory.spare.saturating_add(parked.workspace_bytes()));
        memory.spare = memory.spare.min(memory.allocated.saturating_add(memory.uneven));
        memory
    }

    fn free(&self, sequence: u64) {
        for model in 0..self.models.len() {
            if let Some(hosted) = &mut *self.place(model) {
                hosted.model.free(sequence);
            }
        }
    }

    fn keep_image(&self, model: usize, image: SharedMemory, on_filled: OnFilled) {
        let mut place = self.place(model);
        let Some(hosted) = &mut *place else { return on_filled(Err(Failure::not_loaded())) };
        match hosted.model.weights_mut() {
            Some(weights) => weights.keep_image(image, on_filled),
            None => on_filled(Err(GpuError::Residency(DeviceError::CannotPark).into())),
        }
    }

    fn hold_vectors(&self, dims: usize, room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        self.device.bind()?;
        self.make_room_for(|| self.device.hold_vectors(dims, room))
    }

    fn rouse(&self) {
        self.device.rouse();
    }

    /// Models that are loading are left out.
    fn trim(&self) {
        for model in 0..self.models.len() {
            if let Some(hosted) = &mut *self.place(model) {
                hosted.model.trim();
            }
        }
    }

    /// Models that compute just now are left out.
    fn tend(&self) {
        for known in self.models.iter() {
            if let Ok(mut place) = known.place.try_lock()
                && let Some(hosted) = &mut *place
            {
                hosted.model.tend();
            }
        }
        self.device.tend();
    }

    fn inject(&self, model: usize, fault: InjectedFault, rank: usize) -> Result<(), Failure> {
        match &mut *self.place(model) {
            Some(hosted) => Ok(hosted.model.inject(fault, rank)?),
            None => Err(Failure::not_loaded()),
        }
    }
}

impl FilledImage {
    /// Another mapping of it: a load keeps what it gets, and may have to be tried again.
    fn mapped_anew(&self) -> Result<Self, Failure> {
        let memory = self.memory.fd().try_clone_to_owned().and_then(SharedMemory::from_fd_whole);
        let memory = memory.map_err(|error| Failure::image(error.to_string()))?;
        Ok(Self { memory, bytes: self.bytes })
    }
}

/// Does something while weights arrive, if they do; says how long they took.
fn while_arriving<T>(arriving: Option<Arriving>, act: impl FnOnce() -> T) -> (T, Duration) {
    let Some(arriving) = arriving else { return (act(), Duration::ZERO) };
    let began = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            // Who needs the weights is told why they do not come.
            let _ = arriving();
            began.elapsed()
        });
        let done = act();
        (done, waiting.join().unwrap_or_default())
    })
}

/// Where a model's numbers come from.
fn source_of(source: &ModelSource, spec: &ModelSpec) -> Result<Box<dyn TensorSource>, Failure> {
    Ok(match source {
        ModelSource::Synthetic(_) => Box::new(Synthetic),
        ModelSource::Folder(_) | ModelSource::Onnx { .. } | ModelSource::Decoder(_) => {
            Box::new(Weights::open(&spec.encoder_folder).map_err(Failure::of_model)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_wait_for_weights_is_told_apart() {
        assert_eq!(while_arriving(None, || 7), (7, Duration::ZERO));
        let (arrive, arrives) = channel::<()>();
        let arriving: Arriving = Box::new(move || {
            let _ = arrives.recv();
            Ok(())
        });
        let (_, waited) = while_arriving(Some(arriving), || {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(2) {
                std::thread::yield_now();
            }
            drop(arrive);
        });
        assert!(waited >= Duration::from_millis(2), "{waited:?}");
    }
}
