//! Whether an engine can do its work: proved by a real pass through the devices in use, not by being there.
//! Never keeps an idle model on its device: what was proved holds while nothing waits and no device changes.

use super::{Answer, DeviceState, Engine, EngineError, Priority, Prompt, Residency, Status, Work};
use crate::decoder::Sampling;
use magray_core::DeviceName;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// That an engine computes.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// The device that computed last.
    pub device: DeviceName,
    /// How long ago that was.
    pub since: Duration,
}

/// What is known of the last passes.
#[derive(Debug, Default)]
pub(super) struct PassRecord(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    last: Option<(Instant, DeviceName)>,
    /// How the devices were when a pass was proved last.
    proved: Option<Devices>,
}

/// By device: whether it is used, and how many workers it has had.
type Devices = Vec<(bool, u64)>;

/// Where work waits, a device that computes has computed something within this time.
const FRESH_MAX: Duration = Duration::from_secs(10);
/// A pass that takes longer proves that something is wrong.
const PASS_MAX: Duration = Duration::from_secs(30);

impl PassRecord {
    /// A request was computed.
    pub(super) fn note(&self, answer: &Answer) {
        self.lock().last = Some((Instant::now(), answer.device));
    }

    fn health(&self) -> Option<Health> {
        self.lock().last.map(|(at, device)| Health { device, since: at.elapsed() })
    }

    /// What is known without a new pass: the devices are those that were proved, and if requests wait they are being done.
    fn holds(&self, devices: &Devices, requests: usize) -> Option<Health> {
        let is_proved = self.lock().proved.as_ref() == Some(devices);
        let is_moving = |health: &Health| requests == 0 || health.since < FRESH_MAX;
        self.health().filter(|health| is_proved && is_moving(health))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Engine::health`].
pub(super) async fn check(engine: &Engine) -> Result<Health, EngineError> {
    let passes = &engine.0.passes;
    let before = engine.status();
    if let Some(health) = passes.holds(&devices(&before), before.requests) {
        return Ok(health);
    }
    let models = to_prove(&before);
    for model in &models {
        match prove(engine, *model).await {
            Ok(()) => {}
            // It has gone meanwhile.
            Err(EngineError::NoModel(_)) => {}
            // Too much to do is no illness, unless nothing of it is done.
            Err(error @ EngineError::Full { .. }) => {
                let is_fresh = |health: &Health| health.since < FRESH_MAX;
                return passes.health().filter(is_fresh).ok_or(error);
            }
            Err(error) => return Err(error),
        }
    }
    // A device that came up for it is proved by it; a worker that was replaced meanwhile may not be.
    let (before, after) = (devices(&before), devices(&engine.status()));
    let workers = |devices: &Devices| devices.iter().map(|(_, workers)| *workers).collect::<Vec<_>>();
    passes.lock().proved = Some(if workers(&before) == workers(&after) { after } else { before });
    if models.is_empty() {
        // There is nothing to compute.
        return Ok(Health { device: DeviceName::Cpu, since: Duration::ZERO });
    }
    // Our own pass is noted by now.
    passes.health().ok_or(EngineError::NotYet { within: PASS_MAX })
}

/// A pass of a model: of a language model, one token.
async fn prove(engine: &Engine, model: usize) -> Result<(), EngineError> {
    if engine.spec(model).is_none_or(|spec| spec.generates().is_none()) {
        return engine.ask(known_work(engine, model)?).await.map(drop);
    }
    let sampling = Sampling { ignores_end: true, ..Sampling::default() };
    let (ids, priority, deadline) = (vec![0], Priority::High, Some(PASS_MAX));
    let prompt = Prompt { model, ids, new_tokens_max: 1, sampling, priority, deadline, ..Prompt::default() };
    let mut stream = engine.generate(prompt)?;
    while let Some(token) = stream.next().await {
        token?;
    }
    Ok(())
}

/// The known text of a model, urgent.
fn known_work(engine: &Engine, model: usize) -> Result<Work, EngineError> {
    let canary = engine.0.canaries.get(model).ok_or(EngineError::NoModel(model))?;
    let work = Work::from_ids(model, vec![canary.tokens().ids.to_vec()]);
    Ok(Work { priority: Priority::High, deadline: Some(PASS_MAX), ..work })
}

/// The models that a request would find ready; where there is none, the first.
fn to_prove(status: &Status) -> Vec<usize> {
    let there: Vec<usize> = (0..status.models.len()).filter(|model| !status.models[*model].is_gone).collect();
    let is_ready = |model: &&usize| status.models[**model].view.residency.contains(&Residency::OnDevice);
    let ready: Vec<usize> = there.iter().filter(is_ready).copied().collect();
    if ready.is_empty() { there.into_iter().take(1).collect() } else { ready }
}

fn devices(status: &Status) -> Devices {
    let is_used = |state: DeviceState| matches!(state, DeviceState::InRotation | DeviceState::Resting);
    status.devices.iter().map(|device| (is_used(device.schedule.state), device.schedule.restarts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_said_ok_with_work_that_nobody_computed() {
        let (passes, devices) = (PassRecord::default(), vec![(true, 0), (true, 1)]);
        passes.lock().proved = Some(devices.clone());
        assert!(passes.holds(&devices, 0).is_none(), "nothing was ever computed");
        passes.lock().last = Some((Instant::now(), DeviceName::Cpu));
        assert!(passes.holds(&devices, 5).is_some());
        assert!(passes.holds(&vec![(true, 0), (true, 2)], 5).is_none(), "a worker was replaced");
        let Some(long_ago) = Instant::now().checked_sub(FRESH_MAX) else { return };
        passes.lock().last = Some((long_ago, DeviceName::Cpu));
        assert!(passes.holds(&devices, 5).is_none(), "work waits and nothing is computed");
        assert!(passes.holds(&devices, 0).is_some(), "no request waits");
    }
}
