//! The weights of models in memory that outlives workers: one image for each model and form, shared by all workers of it.
//! Reads and writes no weights, and never hands out an image as filled that a worker has not said to be.

use crate::roster::{Roster, RosterFull};
use crate::spec::ModelSpec;
use crate::worker::{Form, Offer};
use magray_core::Precision;
use magray_core::schedule::DeviceId;
use magray_device::SharedMemory;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pages are given back by the process that unmaps them last, which takes 0.07 s a GiB. So that this is not a worker whose
/// end is waited for, large images are held a little longer than workers need to end.
const LARGE_BYTES: u64 = 1 << 30;
const LET_GO_AFTER: Duration = Duration::from_secs(2);

/// All images of an engine. Each exists from the first load of its model until the model is forgotten.
pub struct Images {
    /// By model: how large an image may become.
    bytes_max: Roster<u64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// At most one for each model and kind of device.
    images: HashMap<(usize, Form), Image>,
    /// Names are never used twice, so that a late report of an image that is gone matches none.
    last: u64,
}

struct Image {
    name: u64,
    memory: Arc<SharedMemory>,
    content: Content,
}

impl Image {
    /// What is in it.
    fn bytes(&self) -> u64 {
        match self.content {
            Content::Filled(bytes) => bytes,
            Content::Filling(_) => 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// This worker has it and fills it, or will.
    Filling(Holder),
    /// This many bytes of it are in use, and stay as they are.
    Filled(u64),
}

/// A worker: the device's and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Whose.
    pub device: DeviceId,
    /// Which of its workers.
    pub worker: u64,
}

/// An image that is handed to a worker.
#[derive(Debug)]
pub struct Handed {
    image: u64,
    memory: Arc<SharedMemory>,
    /// `None`: it is empty.
    bytes: Option<u64>,
}

impl Handed {
    /// As the worker takes it.
    pub fn offer(&self) -> Offer<'_> {
        let Self { image, memory, bytes } = self;
        match *bytes {
            None => Offer::Empty { image: *image, memory },
            Some(bytes) => Offer::Filled { image: *image, memory, bytes },
        }
    }

    /// Its name.
    pub fn name(&self) -> u64 {
        self.image
    }
}

impl Images {
    /// No image yet. Of each model's weights it is told how large they are at most, in any form; memory that is not used
    /// costs nothing.
    pub fn new(bytes_max: Vec<u64>) -> Self {
        Self { bytes_max: bytes_max.into_iter().collect(), state: Mutex::default() }
    }

    /// One model more, whose weights are this large at most.
    pub fn add(&self, bytes_max: u64) -> Result<(), RosterFull> {
        self.bytes_max.push(bytes_max).map(drop)
    }

    /// The image of a model for a worker that is to load it: filled, or empty for the worker to fill. `None` while another
    /// worker fills it, since waiting for that would take longer than reading the files, and for a model that has none. A model
    /// that is not there is a bug.
    pub fn hand_out(&self, model: usize, form: Form, holder: Holder) -> io::Result<Option<Handed>> {
        if self.bytes_max[model] == 0 {
            return Ok(None);
        }
        let mut state = self.lock();
        let key = (model, form);
        if let Some(Image { name, memory, content }) = state.images.get(&key) {
            return Ok(match *content {
                Content::Filling(_) => None,
                Content::Filled(bytes) => Some(Handed { image: *name, memory: Arc::clone(memory), bytes: Some(bytes) }),
            });
        }
        let words = usize::try_from(self.bytes_max[model].div_ceil(4)).map_err(io::Error::other)?;
        let memory = Arc::new(SharedMemory::create(words)?);
        state.last += 1;
        let name = state.last;
        let image = Image { name, memory: Arc::clone(&memory), content: Content::Filling(holder) };
        state.images.insert(key, image);
        Ok(Some(Handed { image: name, memory, bytes: None }))
    }

    /// A worker says that an image is whole. `false` where it cannot be: it is not the one that fills it.
    pub fn filled(&self, holder: Holder, image: u64, bytes: u64) -> bool {
        let mut state = self.lock();
        let Some(image) = state.images.values_mut().find(|known| known.name == image) else { return false };
        let fits = bytes > 0 && bytes <= image.memory.words() as u64 * 4;
        if !fits || image.content != Content::Filling(holder) {
            return false;
        }
        image.content = Content::Filled(bytes);
        true
    }

    /// An image is of no use, as a worker found that has it: it is let go of, and the next load gets another. Whether it
    /// was taken for whole.
    pub fn spoilt(&self, image: u64) -> bool {
        self.remove(|_, known| known.name == image) > 0
    }

    /// Whether an image of a model is whole, in any form.
    pub fn has(&self, model: usize) -> bool {
        let state = self.lock();
        state.images.iter().any(|((of, _), image)| *of == model && matches!(image.content, Content::Filled(_)))
    }

    /// A worker did not take the image that it was handed to fill.
    pub fn not_taken(&self, holder: Holder, image: u64) {
        self.remove(|_, known| known.name == image && known.content == Content::Filling(holder));
    }

    /// A worker is gone: what it was filling never gets whole.
    pub fn gone(&self, holder: Holder) {
        self.remove(|_, known| known.content == Content::Filling(holder));
    }

    /// Lets go of a model's images, and says what was in them. Workers that have them keep them until they are told to
    /// forget the model too.
    pub fn forget(&self, model: usize) -> u64 {
        self.remove(|of, _| of == model)
    }

    /// What the filled images take of the host's memory.
    pub fn bytes(&self) -> u64 {
        self.lock().images.values().map(Image::bytes).sum()
    }

    /// Lets go of some images, and says what was in them.
    fn remove(&self, is_gone: impl Fn(usize, &Image) -> bool) -> u64 {
        let mut state = self.lock();
        let gone: Vec<_> = state.images.extract_if(|(model, _), image| is_gone(*model, image)).collect();
        drop(state);
        let bytes = gone.iter().map(|(_, image)| image.bytes()).sum();
        if bytes >= LARGE_BYTES {
            // Where there is no thread to be had, it is done at once.
            let _ = std::thread::Builder::new().name("let go".to_owned()).spawn(move || {
                std::thread::sleep(LET_GO_AFTER);
                drop(gone);
            });
        }
        bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for a model's weights as they lie on any device: padding included, and what belongs to no layer. Language models may have
/// three times the numbers of an encoder of such a shape, each in 16 bits at most.
pub(super) fn image_bytes_max(spec: &ModelSpec) -> u64 {
    2 * spec.shape.weight_bytes(Precision::F32) + (64 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor_device::ExecutorDevice;
    use crate::executors::{ExecutorModel, ModelSource};
    use crate::gpu::SandboxMode;
    use crate::testing::SimulatedGpu;
    use crate::worker::WorkerSpec;
    use magray_core::{Precision, PrecisionChoice};

    const FIRST: Holder = Holder { device: DeviceId(1), worker: 1 };
    const SECOND: Holder = Holder { device: DeviceId(2), worker: 1 };

    fn form(precision: PrecisionChoice) -> Form {
        let model = ExecutorModel::new(ModelSource::Synthetic("tiny".parse().unwrap()), precision);
        let device = ExecutorDevice::Simulated(SimulatedGpu::default());
        let spec = WorkerSpec {
            device,
            models: Vec::new(),
            models_folder: None,
            slots: 1,
            slot_tokens_max: 1,
            slot_texts_max: 1,
            outputs_max: 1,
            token_numbers_max: 0,
            memory_limit_bytes: None,
            sandbox: SandboxMode::Auto,
            faults: None,
        };
        spec.form(&model)
    }

    fn auto() -> Form {
        form(PrecisionChoice::Auto)
    }

    /// The name of the image that a worker gets, and the bytes in it.
    fn hand(images: &Images, model: usize, holder: Holder) -> Option<(u64, Option<u64>)> {
        images.hand_out(model, auto(), holder).unwrap().map(|handed| (handed.image, handed.bytes))
    }

    #[test]
    fn one_worker_fills_and_all_have_it_then() {
        let images = Images::new(vec![4096, 4096]);
        assert_eq!(hand(&images, 0, FIRST), Some((1, None)));
        assert_eq!(hand(&images, 0, SECOND), None, "another worker fills it");
        assert_eq!(hand(&images, 1, SECOND), Some((2, None)));
        assert_eq!(images.bytes(), 0);
        assert!(images.filled(FIRST, 1, 4000));
        assert_eq!(hand(&images, 0, SECOND), Some((1, Some(4000))));
        images.gone(FIRST);
        assert_eq!(hand(&images, 0, FIRST), Some((1, Some(4000))), "it outlives who filled it");
        assert_eq!((images.bytes(), images.has(0), images.has(1)), (4000, true, false));
        assert_eq!((images.forget(1), images.forget(0), images.forget(0)), (0, 4000, 0), "only what was whole counts");
        assert!(!images.has(0));
    }

    #[test]
    fn what_a_worker_shares_is_the_same_memory() {
        let images = Images::new(vec![4096]);
        let first = images.hand_out(0, auto(), FIRST).unwrap().unwrap();
        first.memory.write(7, &[42]);
        assert!(images.filled(FIRST, first.name(), 4096));
        let second = images.hand_out(0, auto(), SECOND).unwrap().unwrap();
        let mut word = [0];
        second.memory.read(7, &mut word);
        assert_eq!(word, [42]);
    }

    #[test]
    fn a_worker_that_dies_while_it_fills_spoils_the_image() {
        let images = Images::new(vec![4096]);
        assert_eq!(hand(&images, 0, FIRST), Some((1, None)));
        images.gone(FIRST);
        assert!(!images.filled(FIRST, 1, 4096), "a late report matches no image");
        assert_eq!(hand(&images, 0, SECOND), Some((2, None)));
        images.gone(FIRST);
        assert!(images.filled(SECOND, 2, 4096));
    }

    #[test]
    fn only_who_fills_an_image_says_that_it_is_whole() {
        let images = Images::new(vec![4096]);
        assert_eq!(hand(&images, 0, FIRST), Some((1, None)));
        let next = Holder { worker: 2, ..FIRST };
        assert!(!images.filled(SECOND, 1, 10) && !images.filled(next, 1, 10));
        assert!(!images.filled(FIRST, 1, 4097) && !images.filled(FIRST, 1, 0), "more than there is, or nothing");
        assert!(images.filled(FIRST, 1, 10));
        assert!(!images.filled(FIRST, 1, 20), "it is whole already, and others may have it");
    }

    #[test]
    fn late_word_of_a_forgotten_image_does_not_fill_the_next() {
        let images = Images::new(vec![4096]);
        assert_eq!(hand(&images, 0, FIRST), Some((1, None)));
        images.forget(0);
        assert_eq!(hand(&images, 0, FIRST), Some((2, None)));
        assert!(!images.filled(FIRST, 1, 4096));
        assert!(!images.spoilt(1));
        assert_eq!(hand(&images, 0, SECOND), None, "the new one is still being filled");
        images.not_taken(SECOND, 2);
        assert_eq!(hand(&images, 0, SECOND), None, "it was not handed to this worker");
        images.not_taken(FIRST, 2);
        assert_eq!(hand(&images, 0, SECOND), Some((3, None)));
        assert!(images.filled(SECOND, 3, 1));
        assert!(images.spoilt(3) && !images.spoilt(3));
        assert_eq!(hand(&images, 0, SECOND), Some((4, None)));
    }

    #[test]
    fn other_forms_have_other_bytes() {
        let images = Images::new(vec![4096]);
        assert_eq!(hand(&images, 0, FIRST), Some((1, None)));
        let other = form(PrecisionChoice::Exactly(Precision::Int8));
        let handed = images.hand_out(0, other, SECOND).unwrap().unwrap();
        assert_eq!((handed.image, handed.bytes), (2, None));
        images.forget(0);
        assert!(images.lock().images.is_empty());
    }

    #[test]
    fn an_image_larger_than_can_be_is_an_error() {
        let images = Images::new(vec![u64::MAX]);
        assert!(images.hand_out(0, auto(), FIRST).is_err());
        assert!(images.lock().images.is_empty());
    }

    #[test]
    fn nothing_is_held_of_images_that_are_gone() {
        let images = Images::new(vec![4096; 8]);
        let hand = |model| Arc::downgrade(&images.hand_out(model, auto(), FIRST).unwrap().unwrap().memory);
        // The handle and the mapping go with the memory itself.
        let held: Vec<_> = (0..8).map(hand).collect();
        let left = || held.iter().filter(|memory| memory.upgrade().is_some()).count();
        assert!(images.filled(FIRST, 1, 4096) && images.filled(FIRST, 2, 4096));
        images.forget(0);
        assert_eq!(left(), 7);
        images.gone(FIRST);
        assert_eq!(left(), 1);
        drop(images);
        assert_eq!(left(), 0);
    }
}
