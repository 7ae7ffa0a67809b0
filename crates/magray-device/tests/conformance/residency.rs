//! Weights that leave the GPU and come back: to the same addresses, with the same answers, in this process or another.
//! A GPU alone has such weights. Figures are printed and never asserted.

use crate::cuda::{first_gpu, open};
use crate::stack::{Shape, Source, Stack, made};
use half::bf16;
use magray_core::Precision;
use magray_device::cuda::{CONTEXT_BYTES, Cuda, CudaError, CudaOptions, DeviceError};
use magray_device::{MappedFile, NumberFormat, Numbers, SharedMemory};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

const TEXTS: &[usize] = &[40, 3, 20, 100];
const OTHER_TEXTS: &[usize] = &[9, 9];
const MIB: u64 = 1 << 20;

/// The figures are worth something only if one is taken at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test with a GPU that is opened for it, or says that there is none.
pub(crate) fn with_gpu(options: impl Fn(CudaOptions) -> CudaOptions, test: impl FnOnce(&Arc<Cuda>)) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = first_gpu() {
        test(&open(&gpu, options(CudaOptions::default())));
    }
}

fn precisions(cuda: &Cuda) -> Vec<Precision> {
    match cuda.gpu().capability >= (8, 0) {
        true => vec![Precision::Bf16, Precision::F32, Precision::Int8],
        false => vec![Precision::F16, Precision::F32],
    }
}

fn free_bytes(cuda: &Cuda) -> u64 {
    cuda.context().memory_bytes().expect("the driver tells").0
}

#[expect(clippy::print_stdout, reason = "figures are the test's to tell, and captured as such")]
pub(crate) fn tell(what: &str, bytes: u64, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    println!("{what}: {:.1} ms, {:.1} GB/s", seconds * 1e3, bytes as f64 / 1e9 / seconds);
}

/// Fills an image and waits for it.
fn fill(stack: &mut Stack) -> (SharedMemory, u64) {
    let memory = SharedMemory::of_bytes(2 * stack.weights.bytes() + MIB).expect("memory to share");
    let kept = SharedMemory::from_fd_whole(memory.fd().try_clone_to_owned().expect("a second descriptor"))
        .expect("the same memory");
    let (told, hears) = channel();
    stack.weights.keep_image(memory, Box::new(move |filled| told.send(filled).expect("the test waits for it")));
    let bytes = hears.recv().expect("it is told").expect("the image is filled");
    assert!(stack.weights.image_is_filled());
    assert_eq!(bytes, stack.weights.bytes());
    (kept, bytes)
}

/// Record, run, offload, wake, run: equal bits, the recordings are still there, and the memory was gone in between.
fn come_and_go(cuda: &Arc<Cuda>, shape: Shape, source: Source<'_>, rounds: usize) {
    let began = Instant::now();
    let mut stack = Stack::load(cuda, shape, source).expect("the model fits");
    let bytes = stack.weights.bytes();
    tell("load", bytes, began);
    assert!(stack.weights.is_resident() && !stack.weights.is_arriving());
    let (bits, asked) = stack.run(TEXTS).expect("an answer");
    assert!(asked > 0 && bits.iter().any(|&x| x != bits[0]), "an answer");
    let other = stack.run(OTHER_TEXTS).expect("an answer").0;
    assert_eq!(stack.run(TEXTS).expect("an answer"), (bits.clone(), 0), "recorded");
    let recorded = stack.ops.recorded();
    for round in 0..rounds {
        let (free, reserved) = (free_bytes(cuda), cuda.context().device_pool_stats().reserved);
        let began = Instant::now();
        stack.weights.offload().expect("the weights leave");
        tell("offload", bytes, began);
        assert!(!stack.weights.is_resident());
        let stats = cuda.context().device_pool_stats();
        assert_eq!(stats.parked, bytes);
        assert_eq!(reserved - stats.reserved, bytes.next_multiple_of(2 * MIB), "exactly the weights' memory is gone");
        // Other tests take and give meanwhile, but no gigabytes.
        assert!(bytes < 1 << 30 || free_bytes(cuda) >= free + bytes / 2, "the driver has it");
        assert_eq!(stack.run(TEXTS).err(), Some(DeviceError::Away), "round {round}");
        let began = Instant::now();
        stack.weights.wake().expect("the weights come back");
        tell("wake: mapped", bytes, began);
        // Perhaps before they are all there.
        assert_eq!(stack.run(TEXTS).expect("an answer").0, bits, "round {round}: the first after waking");
        tell("wake: first answer", bytes, began);
        stack.weights.wait().expect("the weights are there");
        assert_eq!(stack.ops.recorded(), recorded);
        assert_eq!(stack.run(TEXTS).expect("an answer"), (bits.clone(), 0), "round {round}: still recorded");
        assert_eq!(stack.run(OTHER_TEXTS).expect("an answer"), (other.clone(), 0), "round {round}: still recorded");
        if round == 0 {
            // The first wake had none, and read the model's numbers again.
            fill(&mut stack);
        }
    }
}

/// Both ways to keep images: known to the driver, and not.
fn with_gpu_both_ways(test: impl Fn(&Arc<Cuda>)) {
    for is_kept in [true, false] {
        with_gpu(|options| CudaOptions { keeps_registered: Some(is_kept), ..options }, &test);
    }
}

#[test]
fn answers_and_recordings_survive_offload_and_wake_on_cuda() {
    with_gpu_both_ways(|cuda| {
        for precision in precisions(cuda) {
            come_and_go(cuda, Shape::small(precision), &made, 3);
        }
        let stats = cuda.context().device_pool_stats();
        assert_eq!((stats.used, stats.blocks, stats.parked), (0, 0, 0), "nothing is left");
    });
}

#[test]
fn a_model_of_2_gb_survives_offload_and_wake_on_cuda() {
    with_gpu_both_ways(|cuda| {
        if precisions(cuda).contains(&Precision::Bf16) {
            come_and_go(cuda, Shape::large(), &made, 3);
        }
    });
}

#[test]
fn a_cold_start_from_an_image_answers_the_same_on_cuda() {
    with_gpu_both_ways(|first| {
        for precision in precisions(first) {
            cold_start(first, Shape::small(precision));
        }
        if precisions(first).contains(&Precision::Bf16) {
            cold_start(first, Shape::large());
        }
    });
}

#[test]
#[ignore = "takes 16 GB of the GPU and of the host: for figures"]
fn a_model_of_16_gb_comes_and_goes_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            come_and_go(cuda, Shape::huge(), &made, 3);
            cold_start(cuda, Shape::huge());
        },
    );
}

fn cold_start(first: &Arc<Cuda>, shape: Shape) {
    let gpu = first.gpu().clone();
    let mut stack = Stack::load(first, shape, &made).expect("the model fits");
    let bits = stack.run(TEXTS).expect("an answer").0;
    let began = Instant::now();
    let (memory, bytes) = fill(&mut stack);
    tell("fill the image", bytes, began);
    drop(stack);
    let second = open(&gpu, CudaOptions::default());
    // Kernels are loaded in each context's own time.
    let mut other = Stack::load(&second, Shape::small(shape.precision), &made).expect("the model fits");
    other.run(TEXTS).expect("an answer");
    let began = Instant::now();
    let mut stack = Stack::from_image(&second, shape, memory, bytes).expect("the model fits");
    assert_eq!(stack.run(TEXTS).expect("an answer").0, bits, "{shape:?}: perhaps before all weights are there");
    tell("cold start: first answer", bytes, began);
    stack.weights.wait().expect("the weights are there");
    tell("cold start: all there", bytes, began);
    assert_eq!(stack.run(TEXTS).expect("an answer").0, bits, "{shape:?}: recorded");
    for _ in 0..2 {
        stack.weights.offload().expect("the weights leave");
        let began = Instant::now();
        stack.weights.wake().expect("the weights come back");
        stack.weights.wait().expect("the weights are there");
        tell("wake", bytes, began);
        assert_eq!(stack.run(TEXTS).expect("an answer"), (bits.clone(), 0), "{shape:?}: after waking");
    }
}

#[test]
fn an_image_of_another_model_is_refused_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let shape = Shape::small(precisions(cuda)[0]);
            let memory = || SharedMemory::of_bytes(64 * MIB).unwrap();
            let used = cuda.context().device_pool_stats().used;
            let refused = Stack::from_image(cuda, shape, memory(), 12_345).err();
            assert!(matches!(refused, Some(DeviceError::WrongImage { found: 12_345, .. })), "{refused:?}");
            let mut stack = Stack::load(cuda, shape, &made).expect("the model fits");
            let (told, hears) = channel();
            let short = SharedMemory::of_bytes(4096).unwrap();
            stack.weights.keep_image(short, Box::new(move |filled| told.send(filled).expect("the test waits for it")));
            assert!(matches!(hears.recv().unwrap(), Err(DeviceError::WrongImage { found: 4096, .. })));
            drop(stack);
            assert_eq!(cuda.context().device_pool_stats().used, used, "nothing is left");
        },
    );
}

#[test]
fn an_image_that_is_dropped_while_it_is_filled_is_told_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let mut stack = Stack::load(cuda, Shape::small(precisions(cuda)[0]), &made).expect("the model fits");
            let memory = SharedMemory::of_bytes(stack.weights.bytes()).unwrap();
            let (told, hears) = channel();
            stack.weights.keep_image(memory, Box::new(move |filled| told.send(filled.is_ok()).unwrap()));
            drop(stack);
            // Whether it was in time or not: once, and before the drop has ended.
            assert_eq!(hears.try_iter().count(), 1);
        },
    );
}

/// Leaves while the image is being filled, wakes from half of it and leaves again; the image is right all the same.
fn leave_half_way(cuda: &Arc<Cuda>, shape: Shape) {
    let mut stack = Stack::load(cuda, shape, &made).expect("the model fits");
    let bits = stack.run(TEXTS).expect("an answer").0;
    let memory = SharedMemory::of_bytes(stack.weights.bytes()).expect("memory to share");
    let kept = memory.fd().try_clone_to_owned().and_then(SharedMemory::from_fd_whole).expect("the same memory");
    let (told, hears) = channel();
    stack.weights.keep_image(memory, Box::new(move |filled| told.send(filled).expect("somebody hears")));
    let began = Instant::now();
    stack.weights.offload().expect("the weights leave");
    tell("offload while the image is filled", stack.weights.bytes(), began);
    stack.weights.wake().expect("the weights come back");
    assert_eq!(stack.run(TEXTS).expect("an answer").0, bits, "{shape:?}: from half an image");
    stack.weights.offload().expect("the weights leave");
    let bytes = hears.recv().expect("it is told").expect("the image is filled");
    stack.weights.wake().expect("the weights come back");
    assert_eq!(stack.run(TEXTS).expect("an answer").0, bits, "{shape:?}: from the whole image");
    drop(stack);
    let mut other = Stack::from_image(cuda, shape, kept, bytes).expect("the model fits");
    assert_eq!(other.run(TEXTS).expect("an answer").0, bits, "{shape:?}: another model from it");
}

#[test]
fn weights_that_leave_while_their_image_is_filled_come_back_the_same_on_cuda() {
    with_gpu_both_ways(|cuda| {
        for precision in precisions(cuda) {
            leave_half_way(cuda, Shape::small(precision));
        }
        if precisions(cuda).contains(&Precision::Bf16) {
            leave_half_way(cuda, Shape::large());
        }
    });
}

#[test]
fn a_source_that_panics_leaves_no_memory_taken_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let shape = Shape::small(precisions(cuda)[0]);
            let broken =
                |_: u64, count: usize| Numbers::made(count, Arc::new(|_: usize, _: &mut [f32]| panic!("a bug")));
            let load = std::panic::AssertUnwindSafe(|| Stack::load(cuda, shape, &broken).is_ok());
            assert!(std::panic::catch_unwind(load).is_err());
            assert_eq!(cuda.context().device_pool_stats().used, 0);
            let mut stack = Stack::load(cuda, shape, &made).expect("the model fits");
            stack.run(TEXTS).expect("an answer");
        },
    );
}

#[test]
fn old_activations_are_free_for_new_ones_while_another_stream_is_busy_on_cuda() {
    // Room for the weights, for activations of one large pass, and not for two.
    let limited = |options| CudaOptions { memory_limit_bytes: Some(CONTEXT_BYTES + 110 * MIB), ..options };
    with_gpu(limited, |cuda| {
        let shape = Shape::small(precisions(cuda)[0]);
        let mut growing = Stack::load(cuda, shape, &made).expect("the model fits");
        let mut busy = Stack::load(cuda, shape, &made).expect("the model fits");
        let bits = busy.run(TEXTS).expect("an answer").0;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(busy.run(TEXTS).expect("an answer").0, bits);
                }
            });
            for texts in [60, 70, 80, 90, 100] {
                growing.run(&vec![128; texts]).expect("the old room is free for the new");
                growing.ops.trim();
            }
            other.join().expect("the other is not disturbed");
        });
    });
}

#[test]
fn a_model_beyond_the_limit_is_refused_and_leaves_nothing_on_cuda() {
    let limited = |options| CudaOptions { memory_limit_bytes: Some(700 * MIB), ..options };
    with_gpu(limited, |cuda| {
        let shape = Shape::small(precisions(cuda)[0]);
        let mut stack = Stack::load(cuda, shape, &made).expect("the model fits");
        let bits = stack.run(TEXTS).expect("an answer").0;
        let before = cuda.context().device_pool_stats();
        let refused = Stack::load(cuda, Shape::large(), &made).err();
        assert_eq!(refused, Some(DeviceError::Cuda(CudaError::OutOfMemory)));
        let after = cuda.context().device_pool_stats();
        assert_eq!((after.used, after.blocks), (before.used, before.blocks));
        assert!(after.reserved <= 100 * MIB, "the limit holds: {after:?}");
        assert_eq!(stack.run(TEXTS).expect("an answer"), (bits, 0), "who was there is not disturbed");
    });
}

#[test]
fn a_wake_without_memory_leaves_the_weights_away_on_cuda() {
    let limited = |options| CudaOptions { memory_limit_bytes: Some(CONTEXT_BYTES + 2 * MIB * 30), ..options };
    with_gpu(limited, |cuda| {
        let shape = Shape::small(precisions(cuda)[0]);
        let mut stack = Stack::load(cuda, shape, &made).expect("the model fits");
        let bits = stack.run(TEXTS).expect("an answer").0;
        stack.weights.offload().expect("the weights leave");
        let mut others = Vec::new();
        let refusal = loop {
            match Stack::load(cuda, shape, &made) {
                Ok(other) => others.push(other),
                Err(error) => break error,
            }
        };
        assert_eq!(refusal, DeviceError::Cuda(CudaError::OutOfMemory));
        assert_eq!(stack.weights.wake(), Err(DeviceError::Cuda(CudaError::OutOfMemory)));
        assert!(!stack.weights.is_resident());
        drop(others);
        stack.weights.wake().expect("the weights come back");
        assert_eq!(stack.run(TEXTS).expect("an answer").0, bits);
    });
}

#[test]
fn one_model_comes_and_goes_while_another_computes_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let shape = Shape::small(precisions(cuda)[0]);
            let mut busy = Stack::load(cuda, shape, &made).expect("the model fits");
            let bits = busy.run(TEXTS).expect("an answer").0;
            std::thread::scope(|scope| {
                let roaming = scope.spawn(|| come_and_go(cuda, shape, &made, 20));
                while !roaming.is_finished() {
                    assert_eq!(busy.run(TEXTS).expect("an answer").0, bits);
                }
                roaming.join().unwrap();
            });
        },
    );
}

#[test]
fn a_steady_load_asks_the_driver_for_no_memory_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let mut stack = Stack::load(cuda, Shape::small(precisions(cuda)[0]), &made).expect("the model fits");
            for texts in [TEXTS, OTHER_TEXTS, TEXTS] {
                stack.run(texts).expect("an answer");
            }
            let calls = || {
                let (device, pinned) = (cuda.context().device_pool_stats(), cuda.context().pinned_pool_stats());
                (device.driver_calls, pinned.driver_calls, device.blocks, pinned.blocks)
            };
            let before = calls();
            for _ in 0..50 {
                stack.run(TEXTS).expect("an answer");
                stack.run(OTHER_TEXTS).expect("an answer");
            }
            assert_eq!(calls(), before);
        },
    );
}

#[test]
fn memory_goes_back_to_the_driver_when_it_is_trimmed_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let stack = Stack::load(cuda, Shape::small(precisions(cuda)[0]), &made).expect("the model fits");
            drop(stack);
            cuda.context().trim();
            let (device, pinned) = (cuda.context().device_pool_stats(), cuda.context().pinned_pool_stats());
            assert_eq!((device.reserved, device.used), (0, 0), "{device:?}");
            assert_eq!((pinned.reserved, pinned.used), (0, 0), "{pinned:?}");
        },
    );
}

#[test]
fn the_drivers_pool_gives_the_same_answers_and_says_that_it_cannot_park_on_cuda() {
    let by_driver = |options| CudaOptions { memory_by_driver: true, ..options };
    let mut answers = Vec::new();
    for options in [|options| options, by_driver] {
        with_gpu(options, |cuda| {
            let mut stack = Stack::load(cuda, Shape::small(precisions(cuda)[0]), &made).expect("the model fits");
            answers.push(stack.run(TEXTS).expect("an answer").0);
            assert_eq!(stack.run(TEXTS).expect("an answer"), (answers[0].clone(), 0));
            if answers.len() == 2 {
                assert_eq!(stack.weights.offload(), Err(DeviceError::CannotPark));
                assert_eq!(stack.run(TEXTS).expect("an answer"), (answers[0].clone(), 0));
            }
        });
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn numbers_of_a_file_in_the_right_form_are_taken_as_they_are_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            if !precisions(cuda).contains(&Precision::Bf16) {
                return;
            }
            // One run of numbers as long as the largest tensor, which all tensors begin in.
            let shape = Shape::large();
            let longest = 2048 * 8192;
            let mut values = Vec::new();
            made(1, longest).append_to(&mut values);
            let dir = tempfile::tempdir().unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
            std::fs::write(dir.path().join("numbers"), &bytes).unwrap();
            let file = Arc::new(MappedFile::open(&dir.path().join("numbers")).unwrap());
            let of_file = |_: u64, count: usize| Numbers::mapped(Arc::clone(&file), 0..2 * count, NumberFormat::Bf16);
            let of_memory = |_: u64, count: usize| {
                Numbers::made(count, Arc::new(move |start: usize, out: &mut [f32]| made(1, longest).read(start, out)))
            };
            let mut from_file = Stack::load(cuda, shape, &of_file).expect("the model fits");
            let began = Instant::now();
            drop(from_file);
            tell("drop", 1, began);
            let began = Instant::now();
            from_file = Stack::load(cuda, shape, &of_file).expect("the model fits");
            tell("from the file's cache", from_file.weights.bytes(), began);
            let bits = from_file.run(TEXTS).expect("an answer").0;
            drop(from_file);
            assert_eq!(
                Stack::load(cuda, shape, &of_memory).expect("the model fits").run(TEXTS).expect("an answer").0,
                bits
            );
        },
    );
}

#[test]
fn memory_of_a_burst_goes_back_and_what_is_expected_is_made_room_for_at_once_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let shape = Shape::small(precisions(cuda)[0]);
            let mut stack = Stack::load(cuda, shape, &made).expect("the model fits");
            let used = || cuda.context().device_pool_stats().used;
            let (bits, _) = stack.run(TEXTS).expect("an answer");
            let usual = used();
            stack.run(&[128; 200]).expect("an answer");
            let burst = used();
            assert!(burst > usual + 10 * MIB, "{usual} {burst}");
            let seconds = (0..1000).position(|_| {
                stack.run(TEXTS).expect("an answer");
                stack.ops.age()
            });
            assert!(seconds.is_some_and(|seconds| seconds > 60), "{seconds:?}");
            stack.release(cuda, shape);
            assert_eq!(stack.run(TEXTS).expect("an answer").0, bits);
            assert!(used() < burst, "some of it went");
            // Small ones first: what was usual of late is there at once, so nothing is recorded twice.
            let mut stack = Stack::load(cuda, shape, &made).expect("the model fits");
            stack.run(TEXTS).expect("an answer");
            stack.release(cuda, shape);
            stack.run(OTHER_TEXTS).expect("an answer");
            let recorded = stack.ops.recorded();
            assert_eq!(stack.run(TEXTS).expect("an answer").0, bits);
            assert_eq!(stack.ops.recorded(), recorded + 1, "nothing had to move");
        },
    );
}

#[test]
fn a_probe_takes_and_gives_back_without_the_driver_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let probe = cuda.pool_probe();
            let sizes = [1, 4096, 100_000, 3 << 20, 20 << 20];
            let round = || {
                let blocks = sizes.map(|bytes| probe.take(bytes).expect("there is memory"));
                blocks.into_iter().for_each(|block| probe.give_back(block));
            };
            round();
            let before = probe.stats();
            let began = Instant::now();
            (0..1000).for_each(|_| round());
            tell("5000 blocks taken and given back", 1, began);
            let after = probe.stats();
            assert_eq!((after.driver_calls, after.used, after.misses), (before.driver_calls, 0, before.misses));
            probe.trim();
            assert_eq!(probe.stats().reserved, 0);
        },
    );
}

#[test]
fn layers_as_wide_as_those_of_language_models_are_computed_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let answer = |precision| {
                let mut stack = Stack::load(cuda, Shape::wide(precision), &made).expect("the model fits");
                let bits = stack.run(TEXTS).expect("an answer").0;
                bits.into_iter().map(f32::from_bits).collect::<Vec<_>>()
            };
            let exact = answer(Precision::F32);
            for precision in precisions(cuda) {
                for (row, (a, b)) in exact.chunks(4096).zip(answer(precision).chunks(4096)).enumerate() {
                    let cosine: f32 = a.iter().zip(b).map(|(x, y)| x * y).sum();
                    assert!(cosine > 0.98 && cosine < 1.001, "{precision} text {row}: {cosine}");
                }
            }
        },
    );
}

#[test]
fn a_trace_tells_what_was_taken_on_cuda() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    with_gpu(
        |options| CudaOptions { trace: Some(path.clone()), ..options },
        |cuda| {
            let mut stack = Stack::load(cuda, Shape::small(precisions(cuda)[0]), &made).expect("the model fits");
            stack.run(TEXTS).expect("an answer");
            let bytes = stack.weights.bytes();
            drop(stack);
            cuda.tend();
            let trace = std::fs::read_to_string(&path).expect("a trace");
            let count = |start: &str| trace.lines().filter(|line| line.starts_with(start)).count();
            assert!(count("a ") > 3 && count("a ") == count("f "), "{trace}");
            assert!(trace.contains(&format!(" {bytes}\n")), "{trace}");
        },
    );
}
