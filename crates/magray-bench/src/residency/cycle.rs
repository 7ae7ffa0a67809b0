//! One model that leaves and wakes, round after round: how long each step takes, and what memory each state holds.
//! Every time ends with an answer in the caller's hand, and every answer has the bits of the first.

use std::time::{Duration, Instant};

use magray_engine::{
    DeviceName,
    engine::{Allowed, DeviceState, Engine, EngineError, ModelSource, Moved, Residency, Work},
    gpu::GpuOptions,
    synthetic::{self, Lengths, Vocabulary},
};

use super::{
    arguments::ResidencyArgs,
    bits::{FirstAnswers, Question},
    device_memory::{StateMemory, WholeGpus, gpu_of},
    measured, no_gpu,
    report::{Cycle, Phase, cycle_table},
    written,
};
use crate::{
    engine_start::start,
    failure::Failure,
    terminal::{self, Console},
};

/// Longer than any model takes.
const LONG: Duration = Duration::from_secs(300);

pub(super) fn run(args: &ResidencyArgs, console: Console) -> Result<(), Failure> {
    let name = args.compute.model.clone();
    let source = match &args.write_model {
        None => args.compute.source()?,
        Some(folder) => {
            let Some(shape) = args.compute.shape()? else {
                return Err(Failure::Usage(
                    "--write-model writes models of random weights: --model synthetic:SHAPE".into(),
                ));
            };
            console.note(format_args!("writing {name} into {}", folder.display()));
            written::write(folder, &shape)?;
            ModelSource::Folder(folder.clone())
        }
    };
    let text = text_for(&source, args.tokens as usize)?;
    let measured = measured(args, vec![(name.clone(), source)])?;
    let options = &measured.encoder.gpu;
    let gpus_before = WholeGpus::look(options);
    let engine = start(&measured, console)?;
    let Some(device) = gpu_of(&engine).map(|gpu| gpu.name) else {
        engine.shut_down();
        return Err(no_gpu());
    };
    let subject = Subject { engine, device, text };
    let mut cycle = Cycle::new(name, device, args.write_model.is_some());
    cycle.memory.push(StateMemory::without_engine("before", gpus_before.used_of(device)));
    let ran = subject.run(args.rounds, &mut cycle, options);
    subject.engine.shut_down();
    cycle.memory.push(StateMemory::without_engine("after", WholeGpus::look(options).used_of(device)));
    if let Err(error) = ran {
        cycle.failed += 1;
        cycle.complaints.push(error);
    }
    match args.json {
        true => terminal::print_json(&cycle)?,
        false => terminal::print(&cycle_table(&cycle))?,
    }
    cycle.fault().map_or(Ok(()), |fault| Err(Failure::Broken(fault)))
}

fn text_for(source: &ModelSource, tokens: usize) -> Result<Vec<u32>, Failure> {
    let vocabulary = match source {
        ModelSource::Synthetic(shape) => Vocabulary { size: shape.vocab, tokens_max: shape.positions },
        // Every vocabulary is larger.
        ModelSource::Folder(_) | ModelSource::Onnx { .. } | ModelSource::Decoder(_) => {
            Vocabulary { size: 100, tokens_max: tokens }
        }
    };
    if tokens > vocabulary.tokens_max {
        let most = vocabulary.tokens_max;
        return Err(Failure::Usage(format!("--tokens {tokens}: this model reads at most {most}")));
    }
    Ok(synthetic::batch(1, Lengths::Equal(tokens), &vocabulary).remove(0))
}

struct Subject {
    engine: Engine,
    device: DeviceName,
    text: Vec<u32>,
}

impl Subject {
    /// Runs all rounds; returns why they stopped early, if they did.
    fn run(&self, rounds: u32, cycle: &mut Cycle, options: &GpuOptions) -> Result<(), String> {
        let mut first = FirstAnswers::default();
        let look = |state| StateMemory::look(state, &self.engine, options);
        cycle.memory.push(look("empty"));
        self.answer(Phase::FirstLoad, cycle, &mut first)?;
        // The first passes record what later ones use.
        for _ in 0..3 {
            self.answer(Phase::Warm, cycle, &mut first)?;
        }
        cycle.bytes = self.engine.status().models.first().map_or(0, |model| model.view.plan.bytes);
        cycle.memory.push(look("on_gpu"));
        self.moved(Phase::FirstOffload, cycle, self.engine.offload(0, LONG))?;
        self.wait_for_image()?;
        cycle.memory.push(look("on_cpu"));
        self.moved(Phase::Preheat, cycle, self.engine.preheat(0, LONG))?;
        for round in 0..rounds {
            self.moved(Phase::Offload, cycle, self.engine.offload(0, LONG))?;
            self.answer(Phase::Wake, cycle, &mut first)?;
            self.answer(Phase::Warm, cycle, &mut first)?;
            self.moved(Phase::Offload, cycle, self.engine.offload(0, LONG))?;
            self.wait_for_rest()?;
            if round == 0 {
                cycle.memory.push(look("on_cpu_cold"));
            }
            self.answer(Phase::ColdWake, cycle, &mut first)?;
        }
        for round in 0..rounds {
            self.moved(Phase::Release, cycle, self.engine.release(0, LONG))?;
            self.wait_for_rest()?;
            if round == 0 {
                cycle.memory.push(look("released"));
            }
            self.answer(Phase::Reload, cycle, &mut first)?;
            self.moved(Phase::FirstOffload, cycle, self.engine.offload(0, LONG))?;
            self.answer(Phase::EarlyWake, cycle, &mut first)?;
            self.moved(Phase::Offload, cycle, self.engine.offload(0, LONG))?;
            // It must be there again before the next release is timed.
            self.wait_for_image()?;
            self.moved(Phase::Preheat, cycle, self.engine.preheat(0, LONG))?;
        }
        Ok(())
    }

    /// Sends one request and times it to its answer.
    fn answer(&self, phase: Phase, cycle: &mut Cycle, first: &mut FirstAnswers) -> Result<(), String> {
        let work = Work { allowed: Allowed::Gpu, ..Work::from_ids(0, vec![self.text.clone()]) };
        let started = Instant::now();
        let answer = self.engine.process(work).map_err(|error| format!("{}: {error}", phase.code()))?;
        cycle.record(phase, started.elapsed());
        if !first.is_same(Question { model: 0, first: 0, texts: 1 }, &answer) || answer.device != self.device {
            cycle.wrong += 1;
            cycle.complain(format!("{}: {} answered other bits than at first", phase.code(), answer.device));
        }
        Ok(())
    }

    fn moved(&self, phase: Phase, cycle: &mut Cycle, moved: Result<Moved, EngineError>) -> Result<(), String> {
        let moved = moved.map_err(|error| format!("{}: {error}", phase.code()))?;
        cycle.record(phase, moved.took);
        Ok(())
    }

    fn wait_for_rest(&self) -> Result<(), String> {
        self.wait_for("the worker has not ended", || {
            gpu_of(&self.engine).is_some_and(|gpu| gpu.schedule.state == DeviceState::Resting && gpu.pid.is_none())
        })
    }

    /// Until the copy in the host's memory, which is made beside all else, is whole. The model is off the GPU.
    fn wait_for_image(&self) -> Result<(), String> {
        let in_host = [Residency::OnCpu, Residency::OnCpuCold];
        self.wait_for("the host has no copy of the weights", || {
            let models = self.engine.status().models;
            models.first().is_some_and(|model| model.view.residency.iter().any(|at| in_host.contains(at)))
        })
    }

    fn wait_for(&self, complaint: &str, is_so: impl Fn() -> bool) -> Result<(), String> {
        let until = Instant::now() + LONG;
        while !is_so() {
            if Instant::now() > until {
                return Err(format!("{complaint} after {} s", LONG.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
