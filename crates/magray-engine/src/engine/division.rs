//! Divides a language model by layers between the CPU and the GPUs, where not all of it fits or the settings say so.
//! Reads how large tensors are; loads nothing. What is free just now does not count, only what a GPU may have.

use super::EngineModel;
use super::devices::Gpu;
use super::grouping::{Grouping, OnGroup, needs};
use crate::decoder::{DecoderBytes, DecoderFiles, LinearBytes, stored_bytes};
use crate::encoder::{EncoderOptions, LoadError};
use crate::executors::cpu::kv_bytes;
use crate::executors::{GpuLayers, GroupLayout, LayerSplit, LayersOnGpu};
use crate::spec::{GenerateSpec, ModelSpec};
use magray_core::ledger::Ledger;
use magray_core::schedule::PartInWorkers;
use magray_core::{CpuPath, DeviceName};
use magray_device::KvFormat;
use magray_device::cuda::decoder_linear_bytes;
use std::num::NonZeroUsize;

/// No form of weights on a GPU has more than this many times the bytes of its file.
const GROWTH_MOST: u64 = 4;

/// What models are divided by.
pub(super) struct Dividing {
    asked: GpuLayers,
    kv: KvFormat,
    threads: NonZeroUsize,
    path: Option<CpuPath>,
    gpus: Vec<Room>,
    /// Where GPUs are groups.
    grouping: Option<Grouping>,
}

/// What a GPU may have of a language model.
#[derive(Clone, Copy, Debug)]
struct Room {
    name: DeviceName,
    weights: u64,
    kv: u64,
    is_simulated: bool,
    /// GPUs, where it is a group.
    count: usize,
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
    /// What people are told.
    pub(super) told: Option<LayersOnGpu>,
    /// It is what they asked for.
    is_expected: bool,
    /// No device but the CPU can compute it.
    pub(super) is_kept_off: bool,
}

impl Dividing {
    pub(super) fn new(options: &EncoderOptions, gpus: &[Gpu], threads: usize, grouping: Option<Grouping>) -> Self {
        let limit = options.gpu.rules.memory_limit_bytes;
        let room = |gpu: &Gpu| {
            let ledger = Ledger::new(gpu.memory(limit));
            let (weights, kv) = (ledger.room(), ledger.kv_share());
            Room { name: gpu.name, weights, kv, is_simulated: gpu.info.is_none(), count: gpu.count() }
        };
        Self {
            asked: options.gpu_layers,
            kv: options.kv,
            threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
            path: options.cpu_path,
            gpus: gpus.iter().filter(|gpu| gpu.generates()).map(room).collect(),
            grouping,
        }
    }

    /// Where the layers of a model are that is assigned to this device, or to none.
    pub(super) fn of(&self, spec: &ModelSpec, assigned: Option<DeviceName>) -> Result<Division, LoadError> {
        let Some(spec) = spec.generates() else { return Ok(Division::default()) };
        let of = spec.decoder.layers.len();
        if self.asked == GpuLayers::Number(0) {
            let told =
                LayersOnGpu { on_gpu: 0, of, group: None, reason: "chat.gpu_layers is 0".to_owned(), sums: None };
            return Ok(Division { told: Some(told), is_expected: true, ..Division::default() });
        }
        // Any of them may get it: there is one division for all.
        let may = self.gpus.iter().filter(|gpu| assigned.is_none_or(|assigned| assigned == gpu.name));
        let Some(room) = may.min_by_key(|gpu| gpu.weights).copied() else { return Ok(Division::default()) };
        if let Some(grouping) = &self.grouping {
            return self.on_group(spec, grouping, room);
        }
        if self.asked == GpuLayers::Auto && spec.weight_bytes.saturating_mul(GROWTH_MOST) <= room.weights {
            return Ok(Division::default());
        }
        let linear: LinearBytes = if room.is_simulated { stored_bytes } else { decoder_linear_bytes };
        let files = DecoderFiles::of(&spec.source)?;
        let bytes = DecoderBytes::of(&files, linear)?;
        let whole = if room.is_simulated { spec.weight_bytes } else { bytes.whole() };
        let settled = self.asked.settle(&bytes, whole, room.weights, of);
        Ok(self.division(spec, settled, |layers| if layers == of { whole } else { bytes.last(layers) }))
    }

    /// How many times the weights of a model count that is whole on one GPU: as often as a group has GPUs.
    pub(super) fn copies(&self) -> u64 {
        self.grouping.as_ref().map_or(1, |grouping| grouping.gpus() as u64)
    }

    /// On a group: all of its layers, or as many of the last as there is room for.
    fn on_group(&self, spec: &GenerateSpec, grouping: &Grouping, room: Room) -> Result<Division, LoadError> {
        let of = spec.decoder.layers.len();
        let (needs, token_bytes) = (needs(spec, room.is_simulated)?, spec.kv_token_bytes(self.kv));
        let each = room.weights / room.count as u64;
        let Some(placed) = grouping.place(spec, &needs, (each, token_bytes)) else {
            let reason = format!(
                "{} and its {of} layers of {} heads have no place on {} GPUs with room for {} each",
                mib(needs.whole()),
                needs.heads,
                grouping.gpus(),
                mib(each)
            );
            let told = Some(LayersOnGpu { on_gpu: 0, of, group: None, reason, sums: None });
            return Ok(Division { told, is_kept_off: true, ..Division::default() });
        };
        let OnGroup { layout, cpu_layers, bytes } = placed;
        let told = LayersOnGpu {
            on_gpu: of - cpu_layers,
            of,
            group: Some(layout.clone()),
            reason: grouping.reason.clone(),
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
                told: told.filter(|_| !is_expected),
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
        let fits = format!("of the GPU's memory, which has room for {}", mib(room));
        match self {
            Self::Auto if whole <= room => Settled { on_gpu: of, reason: String::new(), is_expected: true },
            Self::Auto => {
                // The table needs no room there where it is not the head: all layers may fit and the whole may not.
                let on_gpu = bytes.layers_within(room).min(of.saturating_sub(1));
                let (what, need) = match on_gpu {
                    0 => ("the last layer and the head need", bytes.last(1)),
                    _ => ("all of it needs", whole),
                };
                Settled { on_gpu, reason: format!("{what} {} {fits}", mib(need)), is_expected: false }
            }
            Self::Number(layers) => {
                let on_gpu = layers.min(of);
                let need = if on_gpu == of { whole } else { bytes.last(on_gpu) };
                let (asked, is_expected) = (format!("chat.gpu_layers is {layers}"), need <= room);
                let reason = if is_expected { asked } else { format!("{asked}, and these need {} {fits}", mib(need)) };
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

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
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
        let room = Room { name: DeviceName::Simulated(0), weights, kv: 1 << 16, is_simulated, count: 1 };
        let gpus = vec![Room { weights: 1 << 40, name: DeviceName::Simulated(1), ..room }, room];
        Dividing { asked, kv: KvFormat::Halves, threads: NonZeroUsize::MIN, path: None, gpus, grouping: None }
    }

    #[test]
    fn as_many_layers_as_fit_are_on_the_gpu_and_the_reason_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        let generate = spec.generates().unwrap();
        let files = DecoderFiles::of(&generate.source).unwrap();
        for (is_simulated, linear) in [(true, stored_bytes as LinearBytes), (false, decoder_linear_bytes)] {
            let bytes = DecoderBytes::of(&files, linear).unwrap();
            let whole = if is_simulated { generate.weight_bytes } else { bytes.whole() };
            let of = |asked, room| dividing(asked, room, is_simulated).of(&spec, None).unwrap();
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
                too_many.starts_with("chat.gpu_layers is 1, and these need 1 MiB of the GPU's memory"),
                "{too_many}"
            );
            let all = of(GpuLayers::Number(9), whole);
            assert!(all.split.is_none() && all.told.is_none());
            assert!(of(GpuLayers::Number(9), 5).told.is_some_and(|told| told.on_gpu == 2));
        }
    }

    #[test]
    fn the_gpu_that_a_model_is_assigned_to_decides_and_else_the_smallest() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, dividing) = (spec(folder.path()), dividing(GpuLayers::Auto, 1 << 14, true));
        let is_split = |assigned| dividing.of(&spec, assigned).unwrap().told.is_some();
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
