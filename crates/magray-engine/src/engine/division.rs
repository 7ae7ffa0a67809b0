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
use magray_core::{CpuPath, DeviceName};
use magray_device::KvFormat;
use std::num::NonZeroUsize;

/// What models are divided by.
pub(super) struct Dividing {
    asked: GpuLayers,
    kv: KvFormat,
    threads: NonZeroUsize,
    path: Option<CpuPath>,
    host: HostMemory,
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
    /// What those that may have the model take of the host's memory for the layers of the CPU, all together.
    host_bytes: u64,
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
            host,
            gpus: gpus.iter().filter(|gpu| gpu.generates()).map(room).collect(),
            alone: if let Formed::Alone(why) = &formed { Some(why.clone()) } else { None },
            grouping: if let Formed::Groups(grouping) = formed { Some(grouping) } else { None },
        }
    }

    /// Where the layers of a model are; refused where there is no memory for them.
    pub(super) fn of(&self, model: &EngineModel, known: &ModelSpec) -> Result<Division, LoadError> {
        let no_place = |refused| LoadError::NoPlace { model: model.name.clone(), refused };
        let Some(spec) = known.generates() else { return Ok(Division::default()) };
        let of = spec.decoder.layers.len();
        let alone = |reason: &str| -> Result<LayersOnGpu, LoadError> {
            let told = LayersOnGpu { on_gpu: 0, of, group: None, reason: reason.to_owned(), sums: None };
            if !self.host.may_have(known, 1)? {
                self.check_host((self.host.whole(spec)?, 1), &told).map_err(no_place)?;
            }
            Ok(told)
        };
        if self.asked == GpuLayers::Number(0) {
            let told = alone("chat.gpu_layers is 0")?;
            return Ok(Division { told: Some(told), is_expected: true, ..Division::default() });
        }
        // Any of them may get it: there is one division for all.
        let may = |gpu: &&Room| model.assigned.is_none_or(|assigned| gpu.names.contains(&assigned));
        let may: Vec<&Room> = self.gpus.iter().filter(may).collect();
        let Some(&room) = may.iter().min_by_key(|gpu| gpu.weights) else {
            alone("the CPU computes it")?;
            return Ok(Division::default());
        };
        let is_small = || spec.weight_bytes.saturating_mul(GROWTH_MOST) <= room.weights;
        if self.grouping.is_none() && self.asked == GpuLayers::Auto && is_small() {
            let all = |reason: &String| LayersOnGpu { on_gpu: of, of, group: None, reason: reason.clone(), sums: None };
            return Ok(Division {
                told: self.alone.as_ref().map(all),
                is_off_cpu: !self.host.may_have(known, 1)?,
                ..Division::default()
            });
        }
        let files = DecoderFiles::of(&spec.source)?;
        let bytes = Sizes { gpu: sizes(&files, room.is_simulated)?, cpu: self.host.sizes(&files)? };
        self.placed(spec, &bytes, (room, may.len() as u64)).map_err(no_place)
    }

    /// A model whose parts take so much, on GPUs that have this room, by so many workers.
    fn placed(&self, spec: &GenerateSpec, bytes: &Sizes, on: (&Room, u64)) -> Result<Division, Refused> {
        let placed = match &self.grouping {
            Some(grouping) => self.on_group(spec, bytes, grouping, on)?,
            None => self.on_gpu(spec, bytes, on)?,
        };
        let both = bytes.cpu.whole().saturating_add(placed.host_bytes);
        // With a part in workers it is not the CPU's alone.
        let is_off_cpu = placed.in_workers.is_some() && both > self.host.for_weights();
        Ok(Division { is_off_cpu, ..placed })
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
        let (all, available) = (each.saturating_mul(copies), self.host.available());
        if all <= available {
            return Ok(());
        }
        let (left, has, missing) = (size(each), size(available), size(all - available));
        let times = if copies > 1 { format!(" in each of {copies} workers") } else { String::new() };
        Err(Refused(format!(
            "{told}; that leaves {left}{times} to the CPU, and its memory has {has} available: {missing} are missing; {MAKE_IT_FIT}"
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
        let has_room = |cpu_layers: usize| left(cpu_layers) <= self.host.for_weights();
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
            self.check_host((bytes.cpu.whole(), 1), &told)?;
            return Ok(Division { told: Some(told), is_kept_off: true, ..Division::default() });
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
mod tests {
    use super::*;
    use crate::executors::ModelSource;
    use crate::spec::decoder::DecoderSource;
    use crate::testing::tiny_decoder;
    use std::path::Path;

    fn spec(folder: &Path) -> ModelSpec {
        tiny_decoder::write(folder, 4).unwrap();
        ModelSource::Decoder(DecoderSource::Path(folder.to_owned())).spec().unwrap()
    }

    fn dividing(asked: GpuLayers, weights: u64, is_simulated: bool) -> Dividing {
        let room = Room { names: vec![DeviceName::Simulated(0)], weights, kv: 1 << 16, is_simulated };
        let gpus = vec![Room { weights: 1 << 40, names: vec![DeviceName::Simulated(1)], ..room.clone() }, room];
        let host = HostMemory::with(0);
        Dividing {
            asked,
            kv: KvFormat::Halves,
            threads: NonZeroUsize::MIN,
            path: None,
            host,
            gpus,
            grouping: None,
            alone: None,
        }
    }

    fn model(assigned: Option<DeviceName>) -> EngineModel {
        let source = ModelSource::Decoder(DecoderSource::Path("a".into()));
        EngineModel { assigned, ..source.into() }
    }

    #[test]
    fn as_many_layers_as_fit_are_on_the_gpu_and_the_reason_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        let generate = spec.generates().unwrap();
        for is_simulated in [true, false] {
            let bytes = sizes(&DecoderFiles::of(&generate.source).unwrap(), is_simulated).unwrap();
            let whole = if is_simulated { generate.weight_bytes } else { bytes.whole() };
            let of = |asked, room| dividing(asked, room, is_simulated).of(&model(None), &spec).unwrap();
            let all = of(GpuLayers::Auto, whole);
            assert!(all.split.is_none() && all.told.is_none(), "{all:?}");
            assert_eq!(all.in_workers.map(|part| part.bytes), Some(whole));
            for room in [whole - 1, bytes.last(1)] {
                let half = of(GpuLayers::Auto, room);
                let (split, part) = (half.split.unwrap(), half.in_workers.unwrap());
                assert_eq!((split.cpu_layers.get(), part.bytes), (1, bytes.last(1)));
                assert_eq!(part.kv_token_bytes, tiny_decoder::KV_TOKEN_BYTES / 2);
                let told = half.told.unwrap().to_string();
                assert!(
                    told.starts_with("1 of 2 layers are on a GPU, the CPU computes the others: all of it"),
                    "{told}"
                );
            }
            let none = of(GpuLayers::Auto, bytes.last(1) - 1);
            assert!(none.split.is_none() && none.in_workers.is_none());
            let told = none.told.unwrap().to_string();
            assert!(told.starts_with("no layer of 2 is on a GPU: the last layer and the head need"), "{told}");
            let asked = of(GpuLayers::Number(1), whole);
            assert_eq!(asked.told.unwrap().reason, "chat.gpu_layers is 1");
            let too_many = of(GpuLayers::Number(1), 5).told.unwrap().reason;
            assert!(
                too_many.starts_with("chat.gpu_layers is 1, and these need 1 MB of the GPU's memory"),
                "{too_many}"
            );
            let all = of(GpuLayers::Number(9), whole);
            assert!(all.split.is_none() && all.told.is_none());
            assert!(of(GpuLayers::Number(9), 5).told.is_some_and(|told| told.on_gpu == 2));
        }
    }

    const GB: u64 = 1_000_000_000;

    /// A model of 80 layers of so many bytes, as its description says: no weights are read.
    fn described(layer: u64, table: u64) -> (GenerateSpec, DecoderBytes) {
        let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-8b".parse().unwrap()));
        let mut spec = source.spec().unwrap().generates().unwrap().clone();
        let bytes = DecoderBytes::even(80, layer, table, table);
        spec.decoder.layers = vec![spec.decoder.layers[0]; 80];
        spec.weight_bytes = bytes.whole();
        (spec, bytes)
    }

    /// Where the CPU keeps weights as GPUs do.
    fn alike(bytes: &DecoderBytes) -> Sizes {
        Sizes { gpu: bytes.clone(), cpu: bytes.clone() }
    }

    /// GPUs of so many GB as an engine has them, where the host has this memory.
    fn on_gpus(gpus: &[u64], host_gb: u64, asked: GpuLayers) -> Dividing {
        let room = |(at, gb): (usize, &u64)| {
            let (memory_max, kv_max) = (gb * GB, gb * GB / 8);
            let ledger = Ledger::new(magray_core::ledger::Budget { memory_max, context: GB / 2, kv_max });
            let names = vec![DeviceName::Cuda(at)];
            Room { names, weights: ledger.room(), kv: ledger.kv_share(), is_simulated: false }
        };
        let gpus = gpus.iter().enumerate().map(room).collect();
        let host = HostMemory::with(host_gb * GB);
        Dividing {
            asked,
            kv: KvFormat::Halves,
            threads: NonZeroUsize::MIN,
            path: None,
            host,
            gpus,
            grouping: None,
            alone: None,
        }
    }

    #[test]
    fn a_model_of_160_gb_is_divided_with_the_cpu_or_refused_and_says_what_is_missing() {
        let (spec, bytes) = described(1_950_000_000, 2 * GB);
        assert_eq!(bytes.whole(), 160 * GB);
        let on = |gb: u64, host_gb: u64, asked| {
            let dividing = on_gpus(&[gb], host_gb, asked);
            dividing.placed(&spec, &alike(&bytes), (&dividing.gpus[0], 1))
        };
        let large = on(141, 96, GpuLayers::Auto).unwrap();
        assert_eq!(
            large.told.unwrap().to_string(),
            "57 of 80 layers are on a GPU, the CPU computes the others: all of it needs 160.0 GB of the GPU's memory, which has room for \
             114.1 GB"
        );
        assert_eq!(large.split.unwrap().cpu_layers.get(), 23);
        assert_eq!(large.in_workers.unwrap().bytes, bytes.last(57));
        let small = on(80, 128, GpuLayers::Auto).unwrap();
        assert_eq!((small.split.unwrap().cpu_layers.get(), small.in_workers.unwrap().bytes), (48, bytes.last(32)));
        let refused = |gb, host_gb, asked| on(gb, host_gb, asked).unwrap_err().to_string();
        assert_eq!(
            refused(80, 64, GpuLayers::Auto),
            format!(
                "32 of 80 layers are on a GPU, the CPU computes the others: all of it needs 160.0 GB of the GPU's memory, which has room \
                 for 64.5 GB; that leaves 95.6 GB to the CPU, and its memory has 64.0 GB available: 31.6 GB are missing; {MAKE_IT_FIT}"
            )
        );
        let asked = refused(80, 64, GpuLayers::Number(10));
        assert!(asked.starts_with("10 of 80 layers are on a GPU"), "{asked}");
        assert!(asked.contains("chat.gpu_layers is 10; that leaves 138.5 GB to the CPU"), "{asked}");
        let none = refused(4, 64, GpuLayers::Auto);
        assert!(none.starts_with("no layer of 80 is on a GPU: the last layer and the head need 4.0 GB"), "{none}");
        assert!(none.contains("that leaves 160.0 GB to the CPU"), "{none}");
    }

    #[test]
    fn the_cpu_stands_in_where_all_of_a_model_has_room_beside_its_layers_in_a_worker() {
        let (spec, bytes) = described(720_000_000, 1_200_000_000);
        assert_eq!(bytes.whole(), 60 * GB);
        let is_off = |host_gb| {
            let dividing = on_gpus(&[24], host_gb, GpuLayers::Auto);
            let placed = dividing.placed(&spec, &alike(&bytes), (&dividing.gpus[0], 1)).unwrap();
            assert_eq!((placed.split.unwrap().cpu_layers.get(), placed.host_bytes), (56, bytes.first(56)));
            placed.is_off_cpu
        };
        // 60 GB and 41.5 of them again, of three quarters.
        assert_eq!([96, 130, 140].map(is_off), [true, true, false]);
    }

    #[test]
    fn each_worker_has_layers_of_the_cpu_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        let files = DecoderFiles::of(&spec.generates().unwrap().source).unwrap();
        let first = HostMemory::with(0).sizes(&files).unwrap().first(1);
        let of = |available, assigned| {
            let host = HostMemory::with(available);
            Dividing { host, ..dividing(GpuLayers::Number(1), 1 << 30, true) }.of(&model(assigned), &spec)
        };
        let refused = of(2 * first - 1, None).unwrap_err().to_string();
        assert!(refused.contains(" in each of 2 workers to the CPU, and its memory has "), "{refused}");
        let both = of(2 * first, None).unwrap();
        assert!(both.split.is_some() && both.host_bytes == 2 * first && both.is_off_cpu, "{both:?}");
        let one = of(2 * first - 1, Some(DeviceName::Simulated(0))).unwrap();
        assert!(one.split.is_some() && one.host_bytes == first, "{one:?}");
        assert!(!of(1 << 40, None).unwrap().is_off_cpu);
    }

    #[test]
    fn each_group_has_layers_of_the_cpu_of_its_own() {
        let (spec, bytes) = described(1_950_000_000, 2 * GB);
        let on = |groups, host_gb| {
            let mut dividing = on_gpus(&[128], host_gb, GpuLayers::Auto);
            dividing.gpus[0].names.push(DeviceName::Cuda(1));
            dividing.gpus[0].weights = 128 * GB;
            dividing.grouping = Some(Grouping::of(1, 2, (needs(&spec, &bytes), "")));
            dividing.placed(&spec, &alike(&bytes), (&dividing.gpus[0], groups))
        };
        // 17 layers and the table, 35 GB, of three quarters.
        assert_eq!(on(2, 96).unwrap().host_bytes, 2 * bytes.first(17));
        assert_eq!(on(1, 90).unwrap().host_bytes, bytes.first(17));
        assert!(on(2, 90).unwrap_err().to_string().contains("have no place on 2 GPUs"));
    }

    #[test]
    fn a_model_that_only_the_cpu_may_compute_is_refused_where_the_host_has_no_memory_for_it() {
        let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-8b".parse().unwrap()));
        let spec = source.spec().unwrap();
        let model = |assigned| EngineModel { assigned, name: "large".to_owned(), ..source.clone().into() };
        let cpu = Some(DeviceName::Cpu);
        for (gpus, asked, assigned) in
            [(&[][..], GpuLayers::Auto, None), (&[80], GpuLayers::Auto, cpu), (&[80], GpuLayers::Number(0), cpu)]
        {
            let told = on_gpus(gpus, 8, asked).of(&model(assigned), &spec).unwrap_err().to_string();
            assert!(told.starts_with("there is no place for large: no layer of 32 is on a GPU: "), "{told}");
            assert!(
                told.contains("that leaves 16.1 GB to the CPU, and its memory has 8.0 GB available: 8.1 GB"),
                "{told}"
            );
            assert!(on_gpus(gpus, 24, asked).of(&model(assigned), &spec).is_ok());
        }
    }

    #[test]
    fn a_model_on_a_group_says_whose_group_it_is_and_is_found_by_the_name_of_any_of_its_gpus() {
        let (spec, bytes) = described(1_950_000_000, 2 * GB);
        let large = needs(&spec, &bytes);
        let on = |ranks, stages, each: u64, host_gb| {
            let mut dividing = on_gpus(&[each * 2], host_gb, GpuLayers::Auto);
            dividing.gpus[0].names.push(DeviceName::Cuda(1));
            dividing.gpus[0].weights = 2 * each * GB;
            dividing.grouping = Some(Grouping::of(ranks, stages, (large, "160.0 GB do not fit one GPU")));
            dividing
        };
        let of = |dividing: &Dividing, spec: &GenerateSpec, bytes: &DecoderBytes| {
            dividing.placed(spec, &alike(bytes), (&dividing.gpus[0], 1))
        };
        let shared = of(&on(2, 1, 115, 0), &spec, &bytes).unwrap();
        assert_eq!(shared.told.unwrap().to_string(), "2 GPUs share each layer: 160.0 GB do not fit one GPU");
        assert_eq!((shared.in_workers.unwrap().bytes, shared.split), (160 * GB, None));
        let staged = of(&on(1, 2, 64, 96), &spec, &bytes).unwrap();
        assert_eq!(
            staged.told.unwrap().to_string(),
            "2 GPUs have layers one after the other, and the CPU the first 17: 160.0 GB do not fit one GPU"
        );
        assert_eq!(staged.split.unwrap().cpu_layers.get(), 17);
        // 32 layers on the first, 31 and the head, which is the table, on the second: the ledger has room for both.
        assert_eq!(staged.in_workers.unwrap().bytes, 2 * (31 * 1_950_000_000 + 2 * GB));
        let refused = of(&on(1, 2, 3, 96), &spec, &bytes).unwrap_err().to_string();
        assert!(
            refused.contains("its 80 layers of 32 heads have no place on 2 GPUs with room for 3.0 GB each"),
            "{refused}"
        );
        assert!(refused.contains("64.0 GB are missing"), "{refused}");
        let (other, few) = described(100_000_000, GB);
        let told = of(&on(2, 1, 115, 0), &other, &few).unwrap().told.unwrap().reason;
        assert_eq!(told, "the GPUs are a group for another model: 160.0 GB do not fit one GPU");
        // Whichever of its GPUs a model is assigned to.
        let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-1b-q4".parse().unwrap()));
        for assigned in [None, Some(DeviceName::Cuda(0)), Some(DeviceName::Cuda(1))] {
            let model = EngineModel { assigned, ..source.clone().into() };
            assert!(on(2, 1, 115, 0).of(&model, &source.spec().unwrap()).unwrap().group.is_some(), "{assigned:?}");
        }
    }

    #[test]
    fn the_gpu_that_a_model_is_assigned_to_decides_and_else_the_smallest() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, dividing) = (spec(folder.path()), dividing(GpuLayers::Auto, 1 << 14, true));
        let is_split = |assigned| dividing.of(&model(assigned), &spec).unwrap().told.is_some();
        assert!(is_split(None) && is_split(Some(DeviceName::Simulated(0))));
        assert!(!is_split(Some(DeviceName::Simulated(1))) && !is_split(Some(DeviceName::Cpu)));
    }

    #[test]
    fn no_layer_on_a_gpu_is_the_cpu_and_contradicts_a_gpu_that_is_named() {
        let decoder = ModelSource::Decoder(DecoderSource::Path("a".into()));
        let model = |source: &ModelSource, assigned| EngineModel { assigned, ..source.clone().into() };
        let none = GpuLayers::Number(0);
        let cpu = Some(DeviceName::Cpu);
        assert_eq!(assigned(&model(&decoder, None), none).unwrap(), cpu);
        assert_eq!(assigned(&model(&decoder, cpu), none).unwrap(), cpu);
        assert_eq!(assigned(&model(&decoder, None), GpuLayers::Auto).unwrap(), None);
        let gpu = Some(DeviceName::Cuda(1));
        assert!(assigned(&model(&decoder, gpu), none).unwrap_err().to_string().contains("cuda:1"));
        let encoder = ModelSource::Synthetic("tiny".parse().unwrap());
        assert_eq!(assigned(&model(&encoder, gpu), none).unwrap(), gpu);
    }

    #[test]
    fn tokens_that_the_host_has_no_room_for_are_not_promised() {
        assert_eq!(counted(100, 1_000, 50), 100);
        assert_eq!(counted(100, 10_000, 50), 200);
        assert_eq!(counted(100, 10_000, 0), 10_000);
    }
}
