//! Looks on while a load is under way: a line a second for people, and the workers that came and went.
//! Never slows the load down.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use magray_engine::DeviceName;

use magray_load::{DeviceNow, Done, Target, Underway, ms, short};

use crate::terminal::Console;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Every worker, in the order of their starts.
    pub(super) workers: Vec<WorkerSeen>,
    /// What each device did while requests were measured, with its name.
    pub(super) done: Vec<(DeviceName, Done)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct WorkerSeen {
    pub(super) device: DeviceName,
    pub(super) pid: u32,
    /// When it was first seen, since the start of the load.
    pub(super) since: Duration,
}

pub(super) struct Watch<'a> {
    pub(super) target: &'a dyn Target,
    pub(super) console: Console,
    /// When requests begin to be measured, since the start.
    pub(super) warmup: Duration,
    pub(super) measured: Duration,
}

impl Watch<'_> {
    /// Often enough to see every worker: none is replaced within a shorter time.
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    const WORKERS_MAX: usize = 1000;

    /// Watches until the last request was sent.
    pub(super) fn run(&self, underway: &Underway<'_>, over: &Receiver<()>) -> Seen {
        let mut seen = Seen::default();
        let (mut before, mut second) = (None, 1);
        let is_over = |wait| over.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
        loop {
            let since = underway.start.elapsed();
            let devices = self.target.devices();
            seen.note_workers(&devices, since);
            let before = before.get_or_insert_with(|| devices.clone());
            if since < self.warmup {
                before.clone_from(&devices);
            } else if since < self.warmup + self.measured || seen.done.is_empty() {
                seen.done = done_between(before, &devices);
            }
            if since.as_secs() >= second {
                second = since.as_secs() + 1;
                self.console.note(self.line(since, underway, &devices));
            }
            if is_over(Self::LOOK_EVERY) {
                return seen;
            }
        }
    }

    fn line(&self, since: Duration, underway: &Underway<'_>, devices: &[DeviceNow]) -> String {
        let sent = underway.sent();
        let (recent, settled) = {
            let mut tally = underway.tally();
            (tally.take_recent(), tally.settled_count())
        };
        let phase = match since {
            _ if since < self.warmup => " (warm-up)",
            _ if since > self.warmup + self.measured => " (waiting for the last)",
            _ => "",
        };
        let refused = if recent.refused > 0 { format!(", {} refused", recent.refused) } else { String::new() };
        let states: Vec<String> = devices
            .iter()
            .map(|device| match device.pid {
                Some(pid) => format!("{} {} (pid {pid})", device.name, device.state),
                None => format!("{} {}", device.name, device.state),
            })
            .collect();
        format!(
            "{:>4} s{phase}: {} answers{refused}, p50 {} ms, p99 {} ms, longest {} ms, {} open; {}",
            since.as_secs(),
            recent.latency.count(),
            short(ms(recent.latency.at(0.5))),
            short(ms(recent.latency.at(0.99))),
            short(ms(recent.latency.max())),
            sent.saturating_sub(settled),
            states.join(", "),
        )
    }
}

impl Seen {
    /// Texts of a batch, in the mean of all batches that ended while requests were measured.
    pub(super) fn batch_mean(&self) -> f64 {
        let (batches, texts) = self.done.iter().fold((0, 0), |(b, t), (_, done)| (b + done.batches, t + done.texts));
        if batches > 0 { texts as f64 / batches as f64 } else { 0.0 }
    }

    fn note_workers(&mut self, devices: &[DeviceNow], since: Duration) {
        for device in devices {
            let Some(pid) = device.pid else { continue };
            let is_known = |worker: &&WorkerSeen| worker.device == device.name;
            let last = self.workers.iter().rev().find(is_known).map(|worker| worker.pid);
            if last != Some(pid) && self.workers.len() < Watch::WORKERS_MAX {
                self.workers.push(WorkerSeen { device: device.name, pid, since });
            }
        }
    }
}

fn done_between(before: &[DeviceNow], after: &[DeviceNow]) -> Vec<(DeviceName, Done)> {
    before.iter().zip(after).map(|(before, after)| (after.name, after.done.since(before.done))).collect()
}
