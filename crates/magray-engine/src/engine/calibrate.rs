//! Measures how fast CPU and GPU compute a model, by work that passes through the queue like any other.
//! Decides nothing: the figures go to the choice of a device.

use super::devices::{IN_PROCESS, device_of_gpu};
use super::{Allowed, Engine, EngineError, ModelStatus, Outlook, Priority, Residency, Running, Work};
use crate::spec::ModelSpec;
use magray_core::{DeviceName, EncoderShape, Refusal, Scores, Verdict};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The texts that are measured with: a small batch of short texts, as a first request has.
const TEXTS: usize = 8;
const TOKENS: usize = 64;
/// How long a device is measured, the first runs not counted.
const SPENT_MAX: Duration = Duration::from_millis(300);
const RUNS_MAX: usize = 20;
/// A run that takes longer than this is given up, and with it the measurement.
const RUN_MAX: Duration = Duration::from_secs(60);
/// From one look for models that both devices have to the next.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// See [`Engine::calibrate`].
pub(super) fn calibrate(engine: &Engine, model: usize) -> Result<Outlook, EngineError> {
    let choices = &engine.0.choices;
    let _only_one = choices.start_measuring();
    let outlook = choices.outlook(model).ok_or(EngineError::NoModel(model))?;
    let Some(spec) = engine.spec(model).filter(|_| is_unmeasured(engine, model)) else { return Ok(outlook) };
    let (shape, tokens_max) = (spec.shape, spec.max_tokens);
    let one = texts(1, shape, tokens_max);
    // The first run plans buffers and wakes threads, the second tells how many texts the time allows.
    time(engine, model, Allowed::Cpu, &one)?;
    let single = time(engine, model, Allowed::Cpu, &one)?;
    let affordable = SPENT_MAX.as_secs_f64() / 2.0 / single.as_secs_f64().max(1e-9);
    let batch = texts((affordable as usize).clamp(1, TEXTS), shape, tokens_max);
    let cpu = speed(engine, model, Allowed::Cpu, &batch)?;
    let gpu = speed(engine, model, Allowed::Only(device_of_gpu(0)), &batch)?;
    if let Some(scores) = Scores::new(cpu, gpu) {
        choices.measured(model, scores);
    }
    choices.outlook(model).ok_or(EngineError::NoModel(model))
}

/// See [`Engine::settle`].
pub(super) fn settle(engine: &Engine, model: usize, within: Duration) -> Result<Verdict, Refusal> {
    let outlook = || engine.outlook(model).unwrap_or_else(|| unreachable!("the engine has the model"));
    let verdict = outlook().verdict?;
    if verdict.device == DeviceName::Cpu {
        return Ok(verdict);
    }
    engine.wait_until_started(within);
    // A GPU that cannot be measured is tried nevertheless; its failure is reported with the answers.
    calibrate(engine, model).unwrap_or_else(|_| outlook()).verdict
}

/// Calibrates each model that was never measured as soon as both devices have it, without loading it for that.
pub(super) fn calibrate_in_background(engine: &Engine) -> std::io::Result<()> {
    let mut models = 0..engine.models_len();
    if !models.any(|model| is_unmeasured(engine, model)) || !engine.0.choices.begin_watch() {
        return Ok(());
    }
    let weak = Arc::downgrade(&engine.0);
    std::thread::Builder::new().name("calibrate".to_owned()).spawn(move || watch(&weak)).map(drop)
}

fn is_unmeasured(engine: &Engine, model: usize) -> bool {
    let embeds = |spec: &ModelSpec| spec.generates().is_none();
    engine.has_model(model)
        && engine.spec(model).is_some_and(embeds)
        && engine.outlook(model).is_some_and(|outlook| outlook.is_unmeasured())
}

/// Texts a second, of the median run.
fn speed(engine: &Engine, model: usize, allowed: Allowed, texts: &[Vec<u32>]) -> Result<f64, EngineError> {
    time(engine, model, allowed, texts)?;
    let mut times = Vec::new();
    let started = Instant::now();
    while times.is_empty() || (times.len() < RUNS_MAX && started.elapsed() < SPENT_MAX) {
        times.push(time(engine, model, allowed, texts)?);
    }
    times.sort_unstable();
    Ok(texts.len() as f64 / times[times.len() / 2].as_secs_f64().max(1e-9))
}

fn time(engine: &Engine, model: usize, allowed: Allowed, texts: &[Vec<u32>]) -> Result<Duration, EngineError> {
    let work = Work::from_ids(model, texts.to_vec());
    let answer = engine.process(Work { allowed, priority: Priority::Low, deadline: Some(RUN_MAX), ..work })?;
    Ok(answer.computed)
}

/// Calibrates until every model is measured or the engine ends.
fn watch(weak: &Weak<Running>) {
    let mut has_failed = Vec::new();
    while let Some(engine) = weak.upgrade().map(Engine) {
        let left: Vec<usize> = (0..engine.models_len())
            .filter(|model| !has_failed.contains(model) && is_unmeasured(&engine, *model))
            .collect();
        if left.is_empty() {
            return engine.0.choices.end_watch();
        }
        let status = engine.status();
        for model in left {
            let Some(ModelStatus { view, .. }) = status.models.get(model) else { continue };
            let residency = &view.residency;
            let is_there = |device: usize| residency.get(device) == Some(&Residency::OnDevice);
            if [IN_PROCESS, device_of_gpu(0)].iter().all(|device| is_there(usize::from(device.0)))
                && calibrate(&engine, model).is_err()
            {
                // The device has other troubles, which are told elsewhere.
                has_failed.push(model);
            }
        }
        drop(engine);
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn texts(count: usize, shape: EncoderShape, tokens_max: usize) -> Vec<Vec<u32>> {
    let tokens = TOKENS.min(tokens_max).max(1);
    // Ids spread over the table, so that rows come from memory as those of real texts do.
    let id = |at: usize| (at.wrapping_mul(2_654_435_761) % shape.vocab.max(1)) as u32;
    let text = |text: usize| (0..tokens).map(|token| id(text * tokens + token)).collect::<Vec<u32>>();
    (0..count).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_texts_fit_any_model() {
        let shape = EncoderShape { vocab: 7, hidden: 8, layers: 1, heads: 1, ffn: 8, positions: 5 };
        let made = texts(3, shape, 5);
        assert!(made.iter().all(|text| text.len() == 5 && text.iter().all(|id| *id < 7)));
        assert_eq!(texts(1, shape, 500)[0].len(), TOKENS);
    }
}
