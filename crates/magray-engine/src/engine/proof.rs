//! Whether an engine can do its work: proved by a real pass through the devices in use, not by being there.
//! Never keeps an idle model on its device: what was proved holds while nothing waits and no device changes.

use super::{Answer, DeviceState, Engine, EngineError, Priority, Residency, Status, Work};
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
pub(super) struct Proof(Mutex<Known>);

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

impl Proof {
    /// A request was computed.
    pub(super) fn passed(&self, answer: &Answer) {
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

impl Engine {
    /// Proves that requests can be computed now: by a real pass of every model that is on a device, or of the first where
    /// none is. A proof holds until a device changes or work waits that nobody does, so that asking often costs little
    /// and keeps no idle model in memory. An engine that has too much to do is well as long as it computes.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource};
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Synthetic("tiny".parse()?).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let health = engine.health().await?;
    /// println!("{} computed {:?} ago", health.device, health.since);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn health(&self) -> Result<Health, EngineError> {
        let proof = &self.0.proof;
        let before = self.status();
        if let Some(health) = proof.holds(&devices(&before), before.requests) {
            return Ok(health);
        }
        for model in to_prove(&before) {
            match self.ask(self.known_work(model)?).await {
                Ok(_) => {}
                // Too much to do is no illness, unless nothing of it is done.
                Err(error @ EngineError::Full { .. }) => {
                    let is_fresh = |health: &Health| health.since < FRESH_MAX;
                    return proof.health().filter(is_fresh).ok_or(error);
                }
                Err(error) => return Err(error),
            }
        }
        // A device that came up for it is proved by it; a worker that was replaced meanwhile may not be.
        let (before, after) = (devices(&before), devices(&self.status()));
        let workers = |devices: &Devices| devices.iter().map(|(_, workers)| *workers).collect::<Vec<_>>();
        proof.lock().proved = Some(if workers(&before) == workers(&after) { after } else { before });
        // Somebody's pass is noted by now: ours.
        proof.health().ok_or(EngineError::NotYet { within: PASS_MAX })
    }

    /// The known text of a model, urgent.
    fn known_work(&self, model: usize) -> Result<Work, EngineError> {
        let canary = self.0.canaries.get(model).ok_or(EngineError::NoModel(model))?;
        let work = Work::from_ids(model, vec![canary.tokens().ids.to_vec()]);
        Ok(Work { priority: Priority::High, deadline: Some(PASS_MAX), ..work })
    }
}

/// The models that a request would find ready; where there is none, the first.
fn to_prove(status: &Status) -> Vec<usize> {
    let is_ready = |model: &usize| status.models[*model].view.residency.contains(&Residency::OnDevice);
    let ready: Vec<usize> = (0..status.models.len()).filter(is_ready).collect();
    if ready.is_empty() { vec![0] } else { ready }
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
        let (proof, devices) = (Proof::default(), vec![(true, 0), (true, 1)]);
        proof.lock().proved = Some(devices.clone());
        assert!(proof.holds(&devices, 0).is_none(), "nothing was ever computed");
        proof.lock().last = Some((Instant::now(), DeviceName::Cpu));
        assert!(proof.holds(&devices, 5).is_some());
        assert!(proof.holds(&vec![(true, 0), (true, 2)], 5).is_none(), "a worker was replaced");
        let Some(long_ago) = Instant::now().checked_sub(FRESH_MAX) else { return };
        proof.lock().last = Some((long_ago, DeviceName::Cpu));
        assert!(proof.holds(&devices, 5).is_none(), "work waits and nothing is computed");
        assert!(proof.holds(&devices, 0).is_some(), "nobody asked for anything");
    }
}
