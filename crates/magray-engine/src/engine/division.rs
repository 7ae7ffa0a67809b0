//! Divides a language model by layers between the CPU and the GPUs, where not all of it fits or the settings say so.
//! Reads how large tensors are; loads nothing. What is free just now does not count, only what a GPU may have.

use super::EngineModel;
use super::devices::Gpu;
use super::grouping::{Formed, Grouping, OnGroup, needs, sizes};
use super::host_memory::{GROWTH_MOST, HostMemory};
use crate::decoder::{DecoderBytes, DecoderFiles};
use crate::encoder::{EncoderOptions, LoadError};
use crate::executors::cpu::kv_bytes;
use crate::executors::{GpuLayers, GroupLayout, LayerSplit, LayersOnGpu};
use crate::spec::{GenerateSpec, ModelSpec};
use magray_core::ledger::Ledger;
use magray_core::schedule::PartInWorkers;
use magray_core::several_gpus::{MAKE_IT_FIT, Refused, size};
use magray_core::{CpuPath, DeviceChoice, DeviceName};
use magray_device::KvFormat;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What models are divided by.
pub(super) struct Dividing {
    asked: GpuLayers,
    kv: KvFormat,
    threads: NonZeroUsize,
    path: Option<CpuPath>,
    host: Mutex<HostMemory>,
    /// Whether the CPU computes models that GPUs have too.
    cpu_stands_in: bool,
    gpus: Vec<Room>,
    /// Where GPUs are groups.
    grouping: Option<Grouping>,
    /// Why they are none, where the settings want it.
    alone: Option<String>,
}

/// What a GPU may have of a language model.
#[derive(Clone, Debug)]
struct Room {
    /// Its name; of a group those of all its GPUs.
    names: Vec<DeviceName>,
    weights: u64,
    kv: u64,
    is_simulated: bool,
}

/// What the parts of a language model take.
struct Sizes {
    gpu: DecoderBytes,
    cpu: DecoderBytes,
}

/// Where the layers of a model are; by default on the device that computes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Division {
    /// What workers are told.
    pub(super) split: Option<LayerSplit>,
    /// And of a group.
    pub(super) group: Option<GroupLayout>,
    /// What they have of its memory.
    pub(super) in_workers: Option<PartInWorkers>,
    /// What the layers of the CPU take of the host's memory, in all workers that may have the model together, or in this process.
    host_bytes: u64,
    /// What all of it takes beside that where the CPU is to stand in for GPUs.
    stand_in_bytes: u64,
    /// What people are told.
    pub(super) told: Option<LayersOnGpu>,
    /// It is what they asked for.
    is_expected: bool,
    /// No device but the CPU can compute it.
    pub(super) is_kept_off: bool,
    /// GPUs have it or a part of it, and the host has no memory for the whole beside the layers that their workers have.
    pub(super) is_off_cpu: bool,
}

impl Dividing {
    pub(super) fn new(
        options: &EncoderOptions,
        gpus: &[Gpu],
        (threads, host): (usize, HostMemory),
        formed: Formed,
    ) -> Self {
        let limit = options.gpu.rules.memory_limit_bytes;
        let room = |gpu: &Gpu| {
            let ledger = Ledger::new(gpu.memory(limit));
            let (weights, kv) = (ledger.room(), ledger.kv_share());
            Room { names: gpu.names(), weights, kv, is_simulated: gpu.info.is_none() }
        };
        Self {
            asked: options.gpu_layers,
            kv: options.kv,
            threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
            path: options.cpu_path,
            host: Mutex::new(host),
            cpu_stands_in: !matches!(options.device, DeviceChoice::Cuda(_)),
            gpus: gpus.iter().filter(|gpu| gpu.generates()).map(room).collect(),
            alone: if let Formed::Alone(why) = &formed { Some(why.clone()) } else { None },
            grouping: if let Formed::Groups(grouping) = formed { Some(grouping) } else { None },
        }
    }

    /// Where the layers of a model are; refused where there is no memory for them beside the models before it.
    pub(super) fn of(&self, model: &EngineModel, known: &ModelSpec) -> Result<Division, LoadError> {
        let no_place = |refused| LoadError::NoPlace { model: model.name.clone(), refused };
        let Some(spec) = known.generates() else { return Ok(Division::default()) };
        let (of, host) = (spec.decoder.layers.len(), *self.host());
        let alone = |reason: &str| -> Result<Division, LoadError> {
            let told = LayersOnGpu { on_gpu: 0, of, group: None, reason: reason.to_owned(), sums: None };
            let host_bytes = host.whole(spec)?;
            self.check_host((host_bytes, 1), &told).map_err(no_place)?;
            Ok(Division { told: Some(told), host_bytes, is_expected: true, ..Division::default() })
        };
        if self.asked == GpuLayers::Number(0) {
            return alone("chat.gpu_layers is 0");
        }
        // Any of them may get it: there is one division for all.
        let may = |gpu: &&Room| model.assigned.is_none_or(|assigned| gpu.names.contains(&assigned));
        let may: Vec<&Room> = self.gpus.iter().filter(may).collect();
        let Some(&room) = may.iter().min_by_key(|gpu| gpu.weights) else {
            return Ok(Division { told: None, ..alone("the CPU computes it")? });
        };
        let is_small = || spec.weight_bytes.saturating_mul(GROWTH_MOST) <= room.weights;
        if self.grouping.is_none() && self.asked == GpuLayers::Auto && is_small() {
            let all = |reason: &String| LayersOnGpu { on_gpu: of, of, group: None, reason: reason.clone(), sums: None };
            return Ok(Division {
                told: self.alone.as_ref().map(all),
                stand_in_bytes: self.stand_in_bytes(host.whole(spec)?),
                ..Division::default()
            });
        }
        let files = DecoderFiles::of(&spec.source)?;
        let bytes = Sizes { gpu: sizes(&files, room.is_simulated)?, cpu: host.sizes(&files)? };
        self.placed(spec, &bytes, (room, may.len() as u64)).map_err(no_place)
    }

    /// The layers of the CPU have their memory from now on.
    pub(super) fn take(&self, division: &Division) {
        self.host().take(division.host_bytes);
    }

    /// Lets the CPU stand in for GPUs where there is room for all of the model beside what was taken, and takes that.
    pub(super) fn stand_in(&self, division: &mut Division) {
        let mut host = self.host();
        division.is_off_cpu = division.stand_in_bytes > host.for_weights();
        if division.is_off_cpu {
            division.stand_in_bytes = 0;
        }
        host.take(division.stand_in_bytes);
    }

    /// A model that had so much of the host's memory has gone.
    pub(super) fn give_back(&self, bytes: u64) {
        self.host().give_back(bytes);
    }

    fn host(&self) -> MutexGuard<'_, HostMemory> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stand_in_bytes(&self, whole: u64) -> u64 {
        if self.cpu_stands_in { whole } else { 0 }
    }

    /// A model whose parts take so much, on GPUs that have this room, by so many workers.
    fn placed(&self, spec: &GenerateSpec, bytes: &Sizes, on: (&Room, u64)) -> Result<Division, Refused> {
        let placed = match &self.grouping {
            Some(grouping) => self.on_group(spec, bytes, grouping, on)?,
            None => self.on_gpu(spec, bytes, on)?,
        };
        // With a part in workers it is not the CPU's alone.
        let stand_in_bytes = if placed.in_workers.is_some() { self.stand_in_bytes(bytes.cpu.whole()) } else { 0 };
        Ok(Division { stand_in_bytes, ..placed })
    }

    /// On one GPU: all of its layers, or as many of the last as there is room for.
    fn on_gpu(&self, spec: &GenerateSpec, bytes: &Sizes, (room, workers): (&Room, u64)) -> Result<Division, Refused> {
        let of = spec.decoder.layers.len();
        let Sizes { gpu, cpu } = bytes;
        let whole = if room.is_simulated { spec.weight_bytes } else { gpu.whole() };
        let settled = self.asked.settle(gpu, whole, room.weights, of);
        let (each, copies) = match settled.on_gpu {
            // This process has it.
            0 => (cpu.whole(), 1),
            on_gpu if on_gpu == of => (0, workers),
            on_gpu => (cpu.first(of - on_gpu), workers),
        };
        let told = LayersOnGpu { on_gpu: settled.on_gpu, of, group: None, reason: settled.reason.clone(), sums: None };
        self.check_host((each, copies), &told)?;
        let placed = self.division(spec, settled, |layers| if layers == of { whole } else { gpu.last(layers) });
        Ok(Division { host_bytes: each.saturating_mul(copies), ..placed })
    }

    /// Refuses what the CPU is to have of a model, so many times, where there is no memory for it.
    fn check_host(&self, (each, copies): (u64, u64), told: &LayersOnGpu) -> Result<(), Refused> {
        let (all, host) = (each.saturating_mul(copies), *self.host());
        let available = host.available();
        if all <= available {
            return Ok(());
        }
        let (left, has, missing) = (size(each), size(host.at_start()), size(all - available));
        let times = if copies > 1 { format!(" in each of {copies} workers") } else { String::new() };
        let others = match host.granted() {
            0 => String::new(),
            granted => format!(", of which other models have {}", size(granted)),
        };
        Err(Refused(format!(
            "{told}; that leaves {left}{times} to the CPU, and its memory has {has} available{others}: {missing} are missing; {MAKE_IT_FIT}"
        )))
    }

    /// How many times the weights of a model count that is whole on one GPU: as often as a group has GPUs.
    pub(super) fn copies(&self) -> u64 {
        self.grouping.as_ref().map_or(1, |grouping| grouping.gpus() as u64)
    }

    /// On a group: all of its layers, or as many of the last as there is room for.
    fn on_group(
        &self,
        spec: &GenerateSpec,
        bytes: &Sizes,
        grouping: &Grouping,
        (room, workers): (&Room, u64),
    ) -> Result<Division, Refused> {
        let of = spec.decoder.layers.len();
        let (needs, token_bytes) = (needs(spec, &bytes.gpu), spec.kv_token_bytes(self.kv));
        let left = |cpu_layers: usize| match cpu_layers {
            0 => 0,
            _ => bytes.cpu.first(cpu_layers).saturating_mul(workers),
        };
        let for_weights = self.host().for_weights();
        let has_room = |cpu_layers: usize| left(cpu_layers) <= for_weights;
        let count = room.names.len() as u64;
        let each = room.weights / count;
        let Some(placed) = grouping.place(spec, &needs, (each, token_bytes), has_room) else {
            let reason = format!(
                "{} and its {of} layers of {} heads have no place on {} GPUs with room for {} each",
                size(needs.whole()),
                needs.heads,
                grouping.gpus(),
                size(each)
            );
            let told = LayersOnGpu { on_gpu: 0, of, group: None, reason, sums: None };
            let host_bytes = bytes.cpu.whole();
            self.check_host((host_bytes, 1), &told)?;
            return Ok(Division { told: Some(told), is_kept_off: true, host_bytes, ..Division::default() });
        };
        let OnGroup { mut layout, cpu_layers, bytes } = placed;
        let host_bytes = left(cpu_layers);
        // The host keeps the keys and values of the layers that the CPU has.
        let beside = token_bytes * cpu_layers as u64 / of as u64;
        if let Some(each) = kv_bytes().checked_div(beside) {
            layout.kv_token_bytes = counted(layout.kv_token_bytes, room.kv, each);
        }
        let told = LayersOnGpu {
            on_gpu: of - cpu_layers,
            of,
            group: Some(layout.clone()),
            reason: grouping.reason(&needs),
            sums: None,
        };
        let split = NonZeroUsize::new(cpu_layers).map(|cpu_layers| LayerSplit {
            cpu_layers,
            kv_token_bytes: layout.kv_token_bytes,
            threads: self.threads,
            path: self.path,
        });
        let in_workers = Some(PartInWorkers { bytes, kv_token_bytes: layout.kv_token_bytes });
        Ok(Division {
            split,
            group: Some(layout),
            in_workers,
            host_bytes,
            told: Some(told),
            is_expected: cpu_layers == 0,
            ..Division::default()
        })
    }

    fn division(&self, spec: &GenerateSpec, settled: Settled, bytes: impl Fn(usize) -> u64) -> Division {
        let Settled { on_gpu, reason, is_expected } = settled;
        let of = spec.decoder.layers.len();
        let told = Some(LayersOnGpu { on_gpu, of, group: None, reason, sums: None });
        let Some(cpu_layers) = NonZeroUsize::new(of - on_gpu) else {
            let in_workers = PartInWorkers { bytes: bytes(of), kv_token_bytes: spec.kv_token_bytes(self.kv) };
            return Division {
                in_workers: Some(in_workers),
                told: told.filter(|_| !is_expected).or_else(|| {
                    let reason = self.alone.clone()?;
                    Some(LayersOnGpu { on_gpu, of, group: None, reason, sums: None })
                }),
                ..Division::default()
            };
        };
        if on_gpu == 0 {
            return Division { told, ..Division::default() };
        }
        let layer = spec.kv_token_bytes(self.kv) / of as u64;
        let (share, beside) = (layer * on_gpu as u64, layer * cpu_layers.get() as u64);
        let kv = self.gpus.iter().map(|gpu| gpu.kv).max().unwrap_or(0);
        let kv_token_bytes = counted(share, kv, kv_bytes() / beside.max(1));
        let split = LayerSplit { cpu_layers, kv_token_bytes, threads: self.threads, path: self.path };
        let in_workers = PartInWorkers { bytes: bytes(on_gpu), kv_token_bytes };
        Division { split: Some(split), in_workers: Some(in_workers), told, is_expected, ..Division::default() }
    }
}

impl Division {
    /// What it was granted of the host's memory.
    pub(super) fn in_host(&self) -> u64 {
        self.host_bytes.saturating_add(self.stand_in_bytes)
    }

    /// Says in the log where the layers of a model are, unless all are on one device by default.
    pub(super) fn tell(&self, model: &str) {
        match &self.told {
            Some(told) if self.is_expected => tracing::info!(target: "magray::engine", model, "{told}"),
            Some(told) => tracing::warn!(target: "magray::engine", model, "{told}"),
            None => {}
        }
        if self.is_off_cpu {
            tracing::warn!(target: "magray::engine", model, "the CPU does not stand in for GPUs with it: the host has no memory for all of it beside what their workers have");
        }
    }
}

/// How many layers are on a GPU, and why not all.
struct Settled {
    on_gpu: usize,
    reason: String,
    /// It is what was asked for, and it fits.
    is_expected: bool,
}

impl GpuLayers {
    /// Of `of` layers, on a GPU with so much room.
    fn settle(self, bytes: &DecoderBytes, whole: u64, room: u64, of: usize) -> Settled {
        let fits = format!("of the GPU's memory, which has room for {}", size(room));
        match self {
            Self::Auto if whole <= room => Settled { on_gpu: of, reason: String::new(), is_expected: true },
            Self::Auto => {
                // The table needs no room there where it is not the head: all layers may fit and the whole may not.
                let on_gpu = bytes.layers_within(room).min(of.saturating_sub(1));
                let (what, need) = match on_gpu {
                    0 => ("the last layer and the head need", bytes.last(1)),
                    _ => ("all of it needs", whole),
                };
                Settled { on_gpu, reason: format!("{what} {} {fits}", size(need)), is_expected: false }
            }
            Self::Number(layers) => {
                let on_gpu = layers.min(of);
                let need = if on_gpu == of { whole } else { bytes.last(on_gpu) };
                let (asked, is_expected) = (format!("chat.gpu_layers is {layers}"), need <= room);
                let reason = if is_expected { asked } else { format!("{asked}, and these need {} {fits}", size(need)) };
                Settled { on_gpu, reason, is_expected }
            }
        }
    }
}

/// What a token counts as in the GPU's memory: its share there, or more where the host has room for fewer tokens than the GPU.
fn counted(share: u64, kv_of_gpu: u64, tokens_of_host: u64) -> u64 {
    share.max(kv_of_gpu.div_ceil(tokens_of_host.max(1)))
}

/// The device that a model is assigned to. One that has no layer on a GPU is at home on the CPU.
pub(super) fn assigned(model: &EngineModel, asked: GpuLayers) -> Result<Option<DeviceName>, LoadError> {
    match model.assigned {
        Some(name) if name != DeviceName::Cpu && is_kept_off(model, asked) => Err(LoadError::GpuLayers(name)),
        _ if is_kept_off(model, asked) => Ok(Some(DeviceName::Cpu)),
        assigned => Ok(assigned),
    }
}

fn is_kept_off(model: &EngineModel, asked: GpuLayers) -> bool {
    asked == GpuLayers::Number(0) && model.source.is_decoder()
}

#[cfg(test)]
mod tests;
