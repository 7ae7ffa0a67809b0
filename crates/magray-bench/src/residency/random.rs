//! Moves by chance over more models than fit, and what is lost, wrong or left after them.
//! Every number is of this run: the same seed gives the same moves and texts, not the same times.

use std::time::{Duration, Instant};

use magray_engine::{
    DeviceName, EncoderOptions, Precision, PrecisionChoice, SingleDevice,
    engine::{DeviceState, Engine, ModelSource},
    gpu::CONTEXT_BYTES,
};
use serde::Serialize;

use super::{
    arguments::ResidencyArgs,
    device_memory::{WholeGpus, gpu_of},
    held::{Held, Left},
    measured, no_gpu,
    play::{Counts, MOVE_MAX, Play},
    subjects::{self, Subject},
};
use crate::{
    engine_start::{Measured, start},
    failure::Failure,
    terminal::{self, Console},
};

/// Threads and workers of an engine that was shut down are gone by then.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Rounds from one line of progress to the next.
const NOTE_EVERY: u32 = 50;

pub(super) fn run(args: &ResidencyArgs, rounds: u32, console: Console) -> Result<(), Failure> {
    let (models, fit) = (args.models as usize, args.fit as usize);
    if fit >= models {
        return Err(Failure::Usage(format!("--fit {fit}: fewer than the {models} models, or nothing has to leave")));
    }
    let name = args.compute.model.clone();
    let Some(base) = args.compute.shape()? else {
        return Err(Failure::Usage("--random needs models of random weights: --model synthetic:SHAPE".to_owned()));
    };
    let asked = args.compute.options()?;
    let subjects = subjects::make(base, models, &asked)?;
    let sources =
        subjects.iter().map(|subject| (subject.name.clone(), ModelSource::Synthetic(subject.shape))).collect();
    let mut measured = measured(args, sources)?;
    let limit = set_limit(args, &subjects, &mut measured)?;
    let callers = args.callers as usize;
    let play = |engine: &Engine| Play { engine: engine.clone(), subjects: &subjects, callers, fit, seed: args.seed };
    // What the libraries of the system open once for all stays open: a first engine, and a round with it, let them.
    let first = start(&measured, console)?;
    play(&first).run(1, |_| {});
    first.shut_down();
    let gpus_before = WholeGpus::look(&measured.encoder.gpu);
    let before = Held::now();
    let engine = start(&measured, console)?;
    let Some(gpu) = gpu_of(&engine) else {
        engine.shut_down();
        return Err(no_gpu());
    };
    let began = Instant::now();
    let counts = play(&engine).run(rounds, |round| {
        if round.is_multiple_of(NOTE_EVERY) {
            console.note(format_args!("round {round} of {rounds}"));
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let at_rest = wait_for_rest(&engine);
    let views = engine.status().models;
    engine.shut_down();
    let system = before.left(GONE_WITHIN);
    let gpus_after = WholeGpus::look(&measured.encoder.gpu);
    let grown = gpus_after.used_of(gpu.name).zip(gpus_before.used_of(gpu.name));
    let whole_gpu_bytes = grown.map(|(after, before)| after.saturating_sub(before));
    let report = Report {
        model: name,
        device: gpu.name.to_string(),
        rounds,
        models,
        fit,
        seed: args.seed,
        memory_bytes: limit,
        seconds,
        loads: views.iter().map(|model| model.view.loads).sum(),
        offloads: views.iter().map(|model| model.view.offloads).sum(),
        counts,
        left: Remains { at_rest, whole_gpu_bytes, system },
    };
    match args.json {
        true => terminal::print_json(&report)?,
        false => terminal::print(&report.text())?,
    }
    report.fault(args.strict).map_or(Ok(()), |fault| Err(Failure::Broken(fault)))
}

/// Sets a limit at which exactly as many models fit as were asked for; returns the bytes.
fn set_limit(args: &ResidencyArgs, subjects: &[Subject], measured: &mut Measured) -> Result<u64, Failure> {
    let precision = settled_precision(args, subjects, &measured.encoder)?;
    let weights = subjects::bytes_max(subjects, precision);
    // The engine leaves a sixteenth of what it may use to passes. Half a model more than fits gives them air.
    let enough = (u64::from(args.fit) * weights + weights / 2) * 16 / 15;
    let limit = args.limit_mb.map(|mb| mb.saturating_mul(1_000_000));
    match measured.simulated_gpus.as_mut_slice() {
        [] => {
            let limit = limit.unwrap_or(enough + CONTEXT_BYTES);
            measured.encoder.gpu.rules.memory_limit_bytes = Some(limit);
            Ok(limit)
        }
        gpus => {
            let limit = limit.unwrap_or(enough);
            gpus.iter_mut().for_each(|gpu| gpu.memory_bytes = limit);
            Ok(limit)
        }
    }
}

fn settled_precision(args: &ResidencyArgs, subjects: &[Subject], asked: &EncoderOptions) -> Result<Precision, Failure> {
    match (asked.precision.or(asked.gpu.precision), subjects.first()) {
        (PrecisionChoice::Exactly(precision), _) => Ok(precision),
        // A simulated GPU computes as the CPU does.
        (PrecisionChoice::Auto, Some(subject)) if args.compute.is_simulated() => {
            let opened = SingleDevice::open(&ModelSource::Synthetic(subject.shape), DeviceName::Cpu, asked);
            Ok(opened.map_err(|reason| Failure::load(&subject.name, reason))?.precision())
        }
        (PrecisionChoice::Auto, _) => Ok(Precision::Bf16),
    }
}

/// Waits until the GPU, which holds no model any more, has no worker either; returns what it still holds.
fn wait_for_rest(engine: &Engine) -> AtRest {
    let until = Instant::now() + MOVE_MAX;
    loop {
        let gpu = gpu_of(engine);
        let is_resting =
            gpu.as_ref().is_some_and(|gpu| gpu.schedule.state == DeviceState::Resting && gpu.pid.is_none());
        if is_resting || Instant::now() > until {
            let memory = gpu.filter(|gpu| gpu.pid.is_some()).and_then(|gpu| gpu.memory).unwrap_or_default();
            return AtRest { is_resting, device_bytes: memory.allocated, pool_bytes: memory.pool.used };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The rounds and what they came to; the names are those of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    rounds: u32,
    models: usize,
    fit: usize,
    seed: u64,
    /// Shared by the models.
    memory_bytes: u64,
    seconds: f64,
    loads: u64,
    offloads: u64,
    #[serde(flatten)]
    counts: Counts,
    left: Remains,
}

/// What is left in the end.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Remains {
    #[serde(flatten)]
    at_rest: AtRest,
    /// More in use of the whole GPU than before, by all processes, once the engine is gone.
    whole_gpu_bytes: Option<u64>,
    #[serde(flatten)]
    system: Left,
}

/// What the GPU holds when no model is anywhere any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct AtRest {
    is_resting: bool,
    device_bytes: u64,
    pool_bytes: u64,
}

impl Report {
    /// What went wrong, for people. Without `strict`, requests may be refused for lack of memory, and moves may be late.
    fn fault(&self, strict: bool) -> Option<String> {
        let Counts { failed, wrong, other_bits, refused, moves_failed, .. } = &self.counts;
        let lenient = if strict { (*refused, *moves_failed) } else { (0, 0) };
        let counts = [
            (*failed, "requests failed"),
            (*wrong, "answers were wrong"),
            (*other_bits, "answers had other bits than at first"),
            (lenient.0, "requests were refused for want of room"),
            (lenient.1, "moves were not done"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        let found: Vec<String> = counts.chain(self.left.words()).collect();
        (!found.is_empty()).then(|| format!("{} (seed {})", found.join(", "), self.seed))
    }

    fn text(&self) -> String {
        let Counts { requests, answered, refused, failed, wrong, other_bits, compared, .. } = &self.counts;
        let listed = |counts: &mut dyn Iterator<Item = (String, u64)>| {
            counts.map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
        };
        let mut lines = vec![
            format!(
                "{} rounds over {} models like {} on {}, {:.1} MB for {} of them, seed {}, {:.1} s",
                self.rounds,
                self.models,
                self.model,
                self.device,
                self.memory_bytes as f64 / 1e6,
                self.fit,
                self.seed,
                self.seconds
            ),
            format!(
                "requests {requests}: answered {answered}, refused {refused}, failed {failed}, wrong {wrong}; \
                 other bits {other_bits} in {compared} questions"
            ),
            format!("answered by: {}", listed(&mut self.counts.by_device.iter().map(|(a, b)| (a.clone(), *b)))),
            format!(
                "moves: {}; not done {}",
                listed(&mut self.counts.moves.iter().map(|(a, b)| ((*a).to_owned(), *b))),
                self.counts.moves_failed
            ),
            format!(
                "loads {}, offloads {}, at most {} models on the GPU at once",
                self.loads, self.offloads, self.counts.resident_max
            ),
        ];
        if !self.counts.fallbacks.is_empty() {
            let fallbacks = listed(&mut self.counts.fallbacks.iter().map(|(a, b)| ((*a).to_owned(), *b)));
            lines.push(format!("on the CPU in place of the GPU: {fallbacks}"));
        }
        let left = self.left.words();
        lines.push(format!("left: {}", if left.is_empty() { "nothing".to_owned() } else { left.join(", ") }));
        lines.extend(self.counts.complaints.iter().map(|complaint| format!("  {complaint}")));
        lines.join("\n") + "\n"
    }
}

impl Remains {
    /// For people; empty where nothing is left.
    fn words(&self) -> Vec<String> {
        let AtRest { is_resting, device_bytes, pool_bytes } = self.at_rest;
        let mut words = Vec::new();
        if !is_resting {
            words.push("the GPU's worker is still there although no model is".to_owned());
        }
        if device_bytes > 0 || pool_bytes > 0 {
            words.push(format!("{device_bytes} bytes of the GPU, {pool_bytes} of its pool"));
        }
        if let Some(bytes) = self.whole_gpu_bytes.filter(|bytes| *bytes > 0) {
            words.push(format!("{bytes} bytes of the whole GPU more than before (all processes)"));
        }
        words.extend(self.system.words());
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::collections::BTreeMap;

    fn report() -> Report {
        let at_rest = AtRest { is_resting: true, ..AtRest::default() };
        Report {
            model: "synthetic:tiny".to_owned(),
            device: "sim:0".to_owned(),
            rounds: 200,
            models: 6,
            fit: 3,
            seed: 7,
            memory_bytes: 30_000_000,
            seconds: 12.0,
            loads: 90,
            offloads: 87,
            counts: Counts {
                requests: 100,
                answered: 100,
                moves: BTreeMap::from([("offload", 4)]),
                by_device: BTreeMap::from([("cpu".to_owned(), 40), ("sim:0".to_owned(), 60)]),
                resident_max: 3,
                compared: 50,
                ..Counts::default()
            },
            left: Remains { at_rest, ..Remains::default() },
        }
    }

    #[test]
    fn a_run_without_fault_says_so() {
        assert_eq!(report().fault(true), None);
        expect![[r#"
            200 rounds over 6 models like synthetic:tiny on sim:0, 30.0 MB for 3 of them, seed 7, 12.0 s
            requests 100: answered 100, refused 0, failed 0, wrong 0; other bits 0 in 50 questions
            answered by: cpu 40, sim:0 60
            moves: offload 4; not done 0
            loads 90, offloads 87, at most 3 models on the GPU at once
            left: nothing
        "#]]
        .assert_eq(&report().text());
    }

    #[test]
    fn everything_that_is_lost_wrong_or_left_is_a_fault() {
        let faulty: [fn(&mut Report); 8] = [
            |report| report.counts.failed = 1,
            |report| report.counts.wrong = 1,
            |report| report.counts.other_bits = 1,
            |report| report.left.at_rest.is_resting = false,
            |report| report.left.at_rest.pool_bytes = 1,
            |report| report.left.whole_gpu_bytes = Some(1),
            |report| report.left.system.file_descriptors = 1,
            |report| report.left.system.processes = 1,
        ];
        for (at, change) in faulty.into_iter().enumerate() {
            let mut report = report();
            change(&mut report);
            assert!(report.fault(false).is_some_and(|fault| fault.ends_with("(seed 7)")), "{at}");
            assert!(!report.text().contains("left: nothing") || at < 3, "{at}");
        }
        let strict: [fn(&mut Report); 2] =
            [|report| report.counts.refused = 1, |report| report.counts.moves_failed = 1];
        for change in strict {
            let mut report = report();
            change(&mut report);
            assert!(report.fault(false).is_none() && report.fault(true).is_some());
        }
    }
}
