//! All devices: which there are, by where they run and what they are, and what batches cost on them.
//! Decides nothing about any of them.

use super::cost::Cost;
use super::device::{Device, Running};
use super::device_set::{DEVICES_MAX, DeviceSet};
use super::health::Health;
use super::queue::Load;
use super::{
    Allowed, BatchId, DeviceId, DeviceKind, DeviceSpec, Group, Location, MemoryStep, ModelId, Moment, Recovery,
};

/// A device tries a group with no more than this: a guess that is far off costs little.
pub(super) const TRIAL: Load = Load { tokens: 512, texts: 8 };

/// The devices, in the order in which the machine got them.
#[derive(Clone, Debug)]
pub(super) struct Devices {
    devices: Vec<Device>,
    in_process: DeviceSet,
    in_workers: DeviceSet,
    cpus: DeviceSet,
    gpus: DeviceSet,
}

impl Devices {
    pub(super) fn new(specs: &[DeviceSpec], recovery: &Recovery) -> Self {
        assert!(specs.len() <= DEVICES_MAX, "a machine has at most {DEVICES_MAX} devices");
        let with_ids = || (0_u16..).map(DeviceId).zip(specs);
        let those = |is_meant: &dyn Fn(&DeviceSpec) -> bool| -> DeviceSet {
            with_ids().filter(|(_, spec)| is_meant(spec)).map(|(id, _)| id).collect()
        };
        Self {
            devices: with_ids().map(|(id, &spec)| Device::new(id, spec, recovery)).collect(),
            in_process: those(&|spec| spec.location == Location::InProcess),
            in_workers: those(&|spec| spec.location == Location::Worker),
            cpus: those(&|spec| spec.kind == DeviceKind::Cpu),
            gpus: those(&|spec| spec.kind == DeviceKind::Gpu),
        }
    }

    pub(super) fn in_process(&self) -> DeviceSet {
        self.in_process
    }

    pub(super) fn in_workers(&self) -> DeviceSet {
        self.in_workers
    }

    pub(super) fn all(&self) -> DeviceSet {
        self.in_process.union(self.in_workers)
    }

    pub(super) fn allowed(&self, allowed: Allowed) -> DeviceSet {
        match allowed {
            Allowed::Any => self.all(),
            Allowed::Gpu => self.gpus,
            Allowed::Cpu => self.cpus,
            Allowed::Only(device) => DeviceSet::one(device).and(self.all()),
            Allowed::Rather(device) => DeviceSet::one(device).and(self.all()).union(self.in_process),
        }
    }

    /// Those of them that are taken only where the others cannot be.
    pub(super) fn avoided(&self, allowed: Allowed) -> DeviceSet {
        match allowed {
            Allowed::Rather(device) => self.in_process.without(DeviceSet::one(device)),
            Allowed::Any | Allowed::Gpu | Allowed::Cpu | Allowed::Only(_) => DeviceSet::EMPTY,
        }
    }

    pub(super) fn in_rotation(&self) -> DeviceSet {
        self.all().iter().filter(|&id| self.health(id).is_in_rotation()).collect()
    }

    /// Those that are used only where no other may be: their memory is full.
    pub(super) fn full(&self) -> DeviceSet {
        let is_full = |&id: &DeviceId| self.get(id).memory_step() == MemoryStep::Avoided;
        self.in_workers.iter().filter(is_full).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.devices.iter_mut()
    }

    pub(super) fn get(&self, id: DeviceId) -> &Device {
        &self.devices[usize::from(id.0)]
    }

    pub(super) fn get_mut(&mut self, id: DeviceId) -> &mut Device {
        &mut self.devices[usize::from(id.0)]
    }

    pub(super) fn find(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(usize::from(id.0))
    }

    pub(super) fn find_mut(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(usize::from(id.0))
    }

    pub(super) fn health(&self, id: DeviceId) -> &Health {
        self.get(id).health()
    }

    pub(super) fn health_mut(&mut self, id: DeviceId) -> &mut Health {
        self.get_mut(id).health_mut()
    }

    /// The health of a device that an event names, if it has a worker.
    pub(super) fn find_worker(&mut self, id: DeviceId) -> Option<&mut Health> {
        self.find_mut(id).map(Device::health_mut).filter(|health| health.has_worker())
    }

    pub(super) fn is_in_use(&self, id: DeviceId, model: ModelId) -> bool {
        let device = self.get(id);
        device.is_running(model) || device.health().is_probing()
    }

    /// When each is done with its batches, in microseconds from now.
    pub(super) fn remaining_us(&self, now: Moment) -> Vec<f64> {
        self.devices.iter().map(|device| device.remaining_us(now)).collect()
    }

    pub(super) fn take_batch(&mut self, batch: BatchId, now: Moment) -> Option<(DeviceId, Running)> {
        let mut devices = (0_u16..).map(DeviceId).zip(&mut self.devices);
        devices.find_map(|(id, device)| Some((id, device.take_batch(batch, now)?)))
    }

    /// What batches of a group cost on a device. What was not measured is guessed from other devices, and rather too
    /// low, so that every device is tried where it could be of use.
    pub(super) fn cost(&self, id: DeviceId, group: Group) -> Cost {
        let own = self.get(id);
        // What was measured was measured at the speed that it has.
        let guessed = || self.guessed_cost(id, group).scaled(1.0 / own.meter().weight());
        let cost = own.measured_cost(group).unwrap_or_else(guessed);
        cost.scaled(1.0 / own.trust())
    }

    pub(super) fn guessed_cost(&self, id: DeviceId, group: Group) -> Cost {
        let kind = self.get(id).spec().kind;
        let others = self.devices.iter().filter_map(|other| {
            let factor = match (other.spec().kind, kind) {
                (DeviceKind::Gpu, DeviceKind::Cpu) => 8.0,
                (DeviceKind::Cpu, DeviceKind::Gpu) => 1.0 / 16.0,
                _ => 0.5,
            };
            other.measured_cost(group).map(|cost| cost.scaled(factor))
        });
        others.min_by(|a, b| a.of(TRIAL).total_cmp(&b.of(TRIAL))).unwrap_or(match kind {
            DeviceKind::Gpu => Cost::GPU,
            DeviceKind::Cpu => Cost::CPU,
        })
    }
}
