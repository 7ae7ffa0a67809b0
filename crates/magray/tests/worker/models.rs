//! Models come to a worker, leave it and come back, whatever happens to the worker meanwhile.

use crate::rig::{HOLDER, Rig, WIDTH, expected, images, spec, texts};
use magray_core::schedule::{DeviceId, Failure as FailureKind};
use magray_engine::EncoderShape;
use magray_engine::internals::{
    Arrived, ExecutorDevice, ExecutorModel, Exit, FromWorker, Holder, ModelSource, Offer, Origin, SimulatedGpu, Tokens,
    Work, WorkerSpec,
};

/// Another worker than that of [`HOLDER`].
const OTHER: Holder = Holder { device: DeviceId(2), worker: 1 };
/// A move at this speed ends with the test at the latest.
const NEVER: u64 = u64::MAX >> 32;

/// A worker with this many tiny models on a device like this.
fn spec_of(models: usize, gpu: SimulatedGpu) -> WorkerSpec {
    let one = spec();
    WorkerSpec { device: ExecutorDevice::Simulated(gpu), models: vec![one.models[0].clone(); models], ..one }
}

/// What the weights of a tiny model take.
fn tiny_bytes() -> u64 {
    Rig::open(&spec()).load(0, Offer::None).unwrap().bytes
}

/// Computes a batch of a model in the last slot; its rows, or the code of its failure.
fn compute(rig: &mut Rig, model: usize, texts: &[Vec<u32>]) -> Result<Vec<f32>, String> {
    let tokens: Vec<Tokens<'_>> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
    rig.handle.submit(Work { batch: 77, slot: 3, model, skip: 0, texts: &tokens }).unwrap();
    match rig.hear().unwrap() {
        FromWorker::Finished { batch: 77, slot: 3, .. } => Ok(rig.rows(3, texts.len())),
        FromWorker::Failed { batch: 77, problem, .. } => {
            assert_eq!(problem.kind, FailureKind::Transient);
            Err(problem.code)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_has_no_model_before_it_is_told_to_load_one() {
    let mut rig = Rig::open(&spec_of(2, SimulatedGpu::default()));
    let texts = texts(3, 1);
    assert_eq!(compute(&mut rig, 0, &texts), Err("not_loaded".to_owned()));
    rig.load(1, Offer::None).unwrap();
    assert_eq!(compute(&mut rig, 0, &texts), Err("not_loaded".to_owned()));
    assert_eq!(compute(&mut rig, 1, &texts).unwrap(), expected(&texts));
    assert_eq!(rig.stop(), Exit::Stopped);
}

#[test]
fn weights_that_left_and_came_back_answer_bit_for_bit() {
    let (mut rig, images) = (Rig::open(&spec()), images(1));
    let texts = texts(9, 4);
    let first = rig.load_with(&images, HOLDER, 0).unwrap();
    rig.hear_filled(&images, HOLDER);
    assert_eq!((first.origin, images.bytes()), (Origin::Files, first.bytes));
    let before = rig.compute(1, &texts).unwrap();
    for _ in 0..3 {
        assert_eq!(rig.offload(0), 0, "nothing is left on the device");
        assert_eq!(compute(&mut rig, 0, &texts), Err("not_loaded".to_owned()));
        let again = rig.load_with(&images, HOLDER, 0).unwrap();
        assert_eq!((again.origin, again.bytes, again.memory.spare), (Origin::Parked, first.bytes, 0));
        assert_eq!(rig.compute(2, &texts).unwrap(), before);
    }
    assert_eq!(before, expected(&texts));
}

#[test]
fn what_is_told_twice_does_no_harm() {
    let mut rig = Rig::open(&spec());
    assert_eq!(rig.offload(0), 0, "it was not there");
    rig.handle.forget(0).unwrap();
    let first = rig.load(0, Offer::None).unwrap();
    let second = rig.load(0, Offer::None).unwrap();
    assert_eq!((second.origin, second.memory.allocated), (Origin::Device, first.bytes));
    assert_eq!((rig.offload(0), rig.offload(0)), (0, 0));
    let texts = texts(2, 2);
    rig.load(0, Offer::None).unwrap();
    assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
}

#[test]
fn a_model_that_was_forgotten_begins_anew() {
    let (mut rig, images) = (Rig::open(&spec()), images(1));
    rig.load_with(&images, HOLDER, 0).unwrap();
    rig.hear_filled(&images, HOLDER);
    rig.handle.forget(0).unwrap();
    rig.wait_until_empty();
    assert_eq!(rig.load_with(&images, HOLDER, 0).unwrap().origin, Origin::Image, "the image is still there");
    rig.offload(0);
    rig.handle.forget(0).unwrap();
    images.forget(0);
    assert_eq!(rig.load_with(&images, HOLDER, 0).unwrap().origin, Origin::Files);
    rig.hear_filled(&images, HOLDER);
    let texts = texts(2, 2);
    assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
}

#[test]
fn two_workers_share_an_image_and_one_that_died_leaves_it_to_the_next() {
    let images = images(1);
    let texts = texts(5, 3);
    let mut first = Rig::open(&spec());
    first.load_with(&images, HOLDER, 0).unwrap();
    let mut second = Rig::open(&spec());
    first.hear_filled(&images, HOLDER);
    assert_eq!(second.load_with(&images, OTHER, 0).unwrap().origin, Origin::Image);
    let both = [&mut first, &mut second].map(|rig| rig.compute(1, &texts).unwrap());
    assert_eq!(both[0], both[1]);
    first.handle.strike();
    assert_eq!(first.end(), Exit::Killed);
    images.gone(HOLDER);
    assert_eq!((second.offload(0), second.load_with(&images, OTHER, 0).unwrap().origin), (0, Origin::Parked));
    let next = Holder { worker: 2, ..HOLDER };
    let mut third = Rig::open(&spec());
    assert_eq!(third.load_with(&images, next, 0).unwrap().origin, Origin::Image, "no file was read");
    assert_eq!(third.compute(1, &texts).unwrap(), both[0]);
}

#[test]
fn a_worker_that_comes_while_another_fills_reads_the_files() {
    let images = images(1);
    let slow = SimulatedGpu { fill_us_per_mib: NEVER, ..SimulatedGpu::default() };
    let mut first = Rig::open(&spec_of(1, slow));
    first.load_with(&images, HOLDER, 0).unwrap();
    let mut second = Rig::open(&spec());
    assert_eq!(second.load_with(&images, OTHER, 0).unwrap().origin, Origin::Files);
    let texts = texts(2, 2);
    assert_eq!(second.compute(1, &texts).unwrap(), expected(&texts));
    assert_eq!((second.offload(0), second.load(0, Offer::None).unwrap().origin), (0, Origin::Files));
}

#[test]
fn weights_leave_before_their_image_is_whole_and_come_back_from_the_files() {
    let images = images(1);
    let gpu = SimulatedGpu { fill_us_per_mib: NEVER, ..SimulatedGpu::default() };
    let mut rig = Rig::open(&spec_of(1, gpu));
    let texts = texts(2, 2);
    rig.load_with(&images, HOLDER, 0).unwrap();
    for batch in 1..3 {
        assert_eq!(rig.offload(0), 0, "it does not wait for the image");
        assert_eq!(rig.load_with(&images, HOLDER, 0).unwrap().origin, Origin::Files);
        assert_eq!(rig.compute(batch, &texts).unwrap(), expected(&texts));
    }
    assert_eq!(images.bytes(), 0);
}

#[test]
fn an_image_gets_whole_after_its_weights_have_left() {
    let images = images(1);
    // Long enough that the weights leave first, nearly always; the rest holds either way.
    let gpu = SimulatedGpu { fill_us_per_mib: 100_000, ..SimulatedGpu::default() };
    let mut rig = Rig::open(&spec_of(1, gpu));
    rig.load_with(&images, HOLDER, 0).unwrap();
    rig.handle.offload(0).unwrap();
    let (mut has_left, mut is_filled) = (false, false);
    while !(has_left && is_filled) {
        match rig.hear().unwrap() {
            FromWorker::Offloaded { .. } => has_left = true,
            FromWorker::ImageFilled { image, bytes, .. } => is_filled = images.filled(HOLDER, image, bytes),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rig.load_with(&images, HOLDER, 0).unwrap().origin, Origin::Parked);
    let texts = texts(2, 2);
    assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
}

#[test]
fn weights_that_left_without_an_image_come_back_from_one_that_another_worker_has_filled() {
    let images = images(1);
    let mut first = Rig::open(&spec());
    first.load_with(&images, HOLDER, 0).unwrap();
    let mut second = Rig::open(&spec());
    second.load(0, Offer::None).unwrap();
    assert_eq!(second.offload(0), 0);
    first.hear_filled(&images, HOLDER);
    assert_eq!(second.load_with(&images, OTHER, 0).unwrap().origin, Origin::Parked, "no file was read");
    let texts = texts(2, 2);
    assert_eq!(second.compute(1, &texts).unwrap(), expected(&texts));
}

/// Hears two heartbeats: by then an order has begun, if it ever will.
fn hear_beats(rig: &mut Rig) {
    for _ in 0..2 {
        while !matches!(rig.receiver.next().unwrap(), FromWorker::Heartbeat { .. }) {}
    }
}

/// Kills a worker in the midst of a move and lets the next one answer.
fn killed_in_the_midst(gpu: SimulatedGpu, order: impl Fn(&mut Rig, &magray_engine::internals::Images)) {
    let images = images(1);
    let mut rig = Rig::open(&spec_of(1, gpu));
    order(&mut rig, &images);
    hear_beats(&mut rig);
    rig.handle.strike();
    assert_eq!(rig.end(), Exit::Killed);
    images.gone(HOLDER);
    assert_eq!(images.bytes(), 0, "an image that is not whole is not kept");
    let mut next = Rig::open(&spec());
    assert_eq!(next.load_with(&images, OTHER, 0).unwrap().origin, Origin::Files);
    next.hear_filled(&images, OTHER);
    let texts = texts(2, 2);
    assert_eq!(next.compute(1, &texts).unwrap(), expected(&texts));
}

#[test]
fn a_worker_killed_while_it_loads() {
    let gpu = SimulatedGpu { load_us_per_mib: NEVER, ..SimulatedGpu::default() };
    killed_in_the_midst(gpu, |rig, images| rig.order_with(images, HOLDER, 0));
}

#[test]
fn a_worker_killed_while_it_fills_an_image_spoils_it() {
    let gpu = SimulatedGpu { fill_us_per_mib: NEVER, ..SimulatedGpu::default() };
    killed_in_the_midst(gpu, |rig, images| assert!(rig.load_with(images, HOLDER, 0).is_ok()));
}

#[test]
fn a_worker_killed_when_its_weights_have_left_and_their_image_is_not_whole() {
    let gpu = SimulatedGpu { fill_us_per_mib: NEVER, ..SimulatedGpu::default() };
    killed_in_the_midst(gpu, |rig, images| {
        rig.load_with(images, HOLDER, 0).unwrap();
        assert_eq!(rig.offload(0), 0);
    });
}

#[test]
fn a_worker_killed_while_weights_leave_keeps_the_image() {
    let images = images(1);
    let gpu = SimulatedGpu { offload_us_per_mib: NEVER, ..SimulatedGpu::default() };
    let mut rig = Rig::open(&spec_of(1, gpu));
    rig.load_with(&images, HOLDER, 0).unwrap();
    rig.hear_filled(&images, HOLDER);
    rig.handle.offload(0).unwrap();
    hear_beats(&mut rig);
    rig.handle.strike();
    assert_eq!(rig.end(), Exit::Killed);
    images.gone(HOLDER);
    let mut next = Rig::open(&spec());
    assert_eq!(next.load_with(&images, OTHER, 0).unwrap().origin, Origin::Image);
}

#[test]
fn memory_that_is_full_refuses_loads_and_wakes_and_loses_nothing() {
    let gpu = SimulatedGpu { memory_bytes: tiny_bytes() * 3 / 2, ..SimulatedGpu::default() };
    let mut rig = Rig::open(&spec_of(2, gpu));
    let full = |loaded: Result<Arrived, magray_engine::internals::Failure>| {
        assert_eq!(loaded.map_err(|problem| problem.kind), Err(FailureKind::OutOfMemory));
    };
    let texts = texts(1, 2);
    rig.load(0, Offer::None).unwrap();
    full(rig.load(1, Offer::None));
    assert_eq!(compute(&mut rig, 0, &texts).unwrap(), expected(&texts));
    assert_eq!(rig.offload(0), 0);
    rig.load(1, Offer::None).unwrap();
    full(rig.load(0, Offer::None));
    assert_eq!(compute(&mut rig, 1, &texts).unwrap(), expected(&texts));
    assert_eq!(rig.offload(1), 0);
    assert_eq!(rig.load(0, Offer::None).unwrap().origin, Origin::Files, "nobody has an image of it");
    assert_eq!(compute(&mut rig, 0, &texts).unwrap(), expected(&texts));
}

#[test]
fn passes_of_models_that_left_make_room_for_those_that_come() {
    let mut two = spec_of(2, SimulatedGpu::default());
    let tiny: EncoderShape = "tiny".parse().unwrap();
    two.models[1].source = ModelSource::Synthetic(EncoderShape { vocab: 3 * tiny.vocab, ..tiny });
    let large = Rig::open(&two).load(1, Offer::None).unwrap().bytes;
    let short = vec![vec![7; 5]];
    // Room for the large one and a short text, which the small one fills with its passes.
    let memory_bytes = large + 20_000;
    two.device = ExecutorDevice::Simulated(SimulatedGpu { memory_bytes, ..SimulatedGpu::default() });
    let mut rig = Rig::open(&two);
    rig.load(0, Offer::None).unwrap();
    assert!(compute(&mut rig, 0, &[vec![7; 100]]).is_ok());
    rig.handle.offload(0).unwrap();
    let FromWorker::Offloaded { memory, .. } = rig.hear().unwrap() else { panic!("it did not leave") };
    assert!(memory.spare == memory.allocated && memory.free < large, "{memory:?}");
    rig.load(1, Offer::None).unwrap();
    assert!(compute(&mut rig, 1, &short).is_ok());
    assert_eq!(rig.offload(1), 0);
    assert_eq!(rig.load(0, Offer::None).unwrap().origin, Origin::Files);
    assert_eq!(compute(&mut rig, 0, &short).unwrap(), expected(&short));
}

#[test]
fn a_limit_holds_as_if_there_were_no_more_memory() {
    let limited = WorkerSpec { memory_limit_bytes: Some(tiny_bytes() * 3 / 2), ..spec_of(2, SimulatedGpu::default()) };
    let mut rig = Rig::open(&limited);
    assert_eq!(rig.ready.memory.total, SimulatedGpu::default().memory_bytes);
    rig.load(0, Offer::None).unwrap();
    assert_eq!(rig.load(1, Offer::None).map_err(|problem| problem.kind), Err(FailureKind::OutOfMemory));
}

#[test]
fn a_model_that_comes_back_fills_the_image_that_it_gets_instead_of_a_spoilt_one() {
    let (mut rig, images) = (Rig::open(&spec()), images(1));
    rig.load_with(&images, HOLDER, 0).unwrap();
    rig.hear_filled(&images, HOLDER);
    assert!(images.spoilt(1) && rig.offload(0) == 0);
    assert_eq!(rig.load_with(&images, HOLDER, 0).unwrap().origin, Origin::Parked);
    rig.hear_filled(&images, HOLDER);
    assert!(images.has(0));
    let mut next = Rig::open(&spec());
    assert_eq!(next.load_with(&images, OTHER, 0).unwrap().origin, Origin::Image);
}

#[test]
fn a_long_load_does_not_delay_other_requests() {
    let images = images(2);
    let mut filler = Rig::open(&spec());
    filler.load_with(&images, HOLDER, 0).unwrap();
    filler.hear_filled(&images, HOLDER);
    // From memory a model comes at once here, and from files never.
    let gpu = SimulatedGpu { load_us_per_mib: NEVER, ..SimulatedGpu::default() };
    let mut rig = Rig::open(&spec_of(3, gpu));
    rig.load_with(&images, OTHER, 0).unwrap();
    rig.order_with(&images, OTHER, 1);
    let texts = texts(4, 4);
    for _ in 0..3 {
        while !matches!(rig.receiver.next().unwrap(), FromWorker::Heartbeat { .. }) {}
        assert_eq!(compute(&mut rig, 0, &texts).unwrap(), expected(&texts));
        assert_eq!(compute(&mut rig, 1, &texts), Err("not_loaded".to_owned()));
    }
    // The one that loads has taken its memory, the one that leaves gives its own back.
    assert_eq!(rig.offload(0), tiny_bytes());
    rig.handle.kill();
    assert_eq!(rig.end(), Exit::Ordered);
}

#[test]
fn loads_come_in_the_order_of_their_orders() {
    let mut rig = Rig::open(&spec_of(4, SimulatedGpu::default()));
    for model in [2, 0, 3, 1] {
        rig.handle.load(model, Offer::None).unwrap();
    }
    for model in [2, 0, 3, 1] {
        rig.hear_load(model).unwrap();
    }
}

#[test]
fn an_image_that_is_not_whole_is_refused_and_the_files_are_read() {
    let (mut rig, images) = (Rig::open(&spec()), images(1));
    let spec = spec();
    let handed = images.hand_out(0, spec.form(&spec.models[0]), HOLDER).unwrap().unwrap();
    assert!(images.filled(HOLDER, handed.name(), tiny_bytes()), "reported by one that did not fill it");
    let handed = images.hand_out(0, spec.form(&spec.models[0]), OTHER).unwrap().unwrap();
    rig.handle.load(0, handed.offer()).unwrap();
    let said = rig.hear().unwrap();
    assert!(matches!(&said, FromWorker::ImageSpoilt { model: 0, image: 1, .. }), "{said:?}");
    assert_eq!(rig.hear_load(0).unwrap().origin, Origin::Files);
    let texts = texts(2, 2);
    assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
}

#[test]
fn an_image_too_small_is_spoilt_and_the_model_is_there() {
    let mut rig = Rig::open(&spec());
    let images = magray_engine::internals::Images::new(vec![4096]);
    rig.order_with(&images, HOLDER, 0);
    let both = [rig.hear().unwrap(), rig.hear().unwrap()];
    assert!(both.iter().any(|said| matches!(said, FromWorker::ImageSpoilt { image: 1, .. })), "{both:?}");
    assert!(both.iter().any(|said| matches!(said, FromWorker::Loaded { .. })), "{both:?}");
}

#[test]
fn a_model_that_is_broken_or_not_as_it_was_is_refused_and_the_others_go_on() {
    let mut three = spec_of(2, SimulatedGpu::default());
    three.models.push(ExecutorModel { source: ModelSource::Folder("none/such".into()), ..three.models[0].clone() });
    let mut rig = Rig::open(&three);
    rig.load(0, Offer::None).unwrap();
    let broken = rig.load(2, Offer::None).unwrap_err();
    assert_eq!((broken.kind, broken.code.as_str()), (FailureKind::Transient, "model_broken"));
    assert!(broken.message.contains("none/such"), "{}", broken.message);
    let texts = texts(2, 2);
    assert_eq!(compute(&mut rig, 0, &texts).unwrap(), expected(&texts));

    let narrow = WorkerSpec { outputs_max: WIDTH - 1, ..spec() };
    let mut rig = Rig::open(&narrow);
    let changed = rig.load(0, Offer::None).unwrap_err();
    assert_eq!((changed.kind, changed.code.as_str()), (FailureKind::Transient, "model_changed"));
    rig.wait_until_empty();
}
