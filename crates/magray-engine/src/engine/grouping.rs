//! Makes groups of the GPUs, where a language model needs several of them or the settings say so, and divides models between their GPUs.
//! Starts nothing, and reads no more than how large tensors are.

use super::devices::{Devices, Gpu};
use super::host_memory::HostMemory;
use super::{EngineModel, EngineOptions};
use crate::decoder::{DecoderBytes, DecoderFiles, LinearBytes, stored_bytes};
use crate::encoder::LoadError;
use crate::executors::{GpuLayers, GroupLayout};
use crate::spec::{GenerateSpec, ModelSpec};
use magray_core::DeviceName;
use magray_core::ledger::Ledger;
use magray_core::several_gpus::{Machine, ModelNeeds, Plan, Refused, Speeds, Strategy, plan};
use magray_device::cuda::decoder_linear_bytes;
use std::num::NonZeroUsize;

/// How the GPUs of every group stand to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grouping {
    pub(super) ranks: usize,
    pub(super) stages: usize,
    /// What the model needs that there are groups for.
    needs: ModelNeeds,
    /// Why there are groups.
    reason: String,
}

impl Grouping {
    /// GPUs of a group.
    pub(super) fn gpus(&self) -> usize {
        self.ranks * self.stages
    }
}

/// What the parts of a model take of GPUs.
pub(super) fn sizes(files: &DecoderFiles, is_simulated: bool) -> Result<DecoderBytes, LoadError> {
    let linear: LinearBytes = if is_simulated { stored_bytes } else { decoder_linear_bytes };
    Ok(DecoderBytes::of(files, linear)?)
}

/// What a model needs of GPUs.
pub(super) fn needs(spec: &GenerateSpec, bytes: &DecoderBytes) -> ModelNeeds {
    bytes.needs(&spec.decoder)
}

/// What became of the GPUs.
pub(super) enum Formed {
    /// Each computes by itself.
    Single,
    /// As `Single`, and this is why they do not as the settings say.
    Alone(String),
    /// They are groups.
    Groups(Grouping),
}

/// Makes groups of GPUs: all of one size, which the largest model needs. GPUs that are left over are not used.
pub(super) fn form<'a>(
    mut devices: Devices,
    options: &EngineOptions,
    host: HostMemory,
    spec: impl Fn(usize) -> &'a ModelSpec,
) -> Result<(Devices, Formed), LoadError> {
    let (count, strategy) = (devices.gpus.len(), options.strategy);
    let is_divided = options.encoder.gpu_layers != GpuLayers::Auto;
    let asked = match strategy {
        Strategy::Tensor => Some("tensor"),
        Strategy::Pipeline => Some("pipeline"),
        Strategy::Auto | Strategy::Data => None,
    };
    if let Some(word) = asked.filter(|_| count == 1) {
        let name = devices.gpus[0].name;
        let why = format!("gpu.multi_gpu.strategy is {word}, and {name} is the only GPU: it computes by itself");
        return Ok((devices, Formed::Alone(why)));
    }
    if count < 2
        || !devices.gpus.iter().all(Gpu::generates)
        || strategy == Strategy::Data
        || (strategy == Strategy::Auto && is_divided)
    {
        return Ok((devices, Formed::Single));
    }
    let limit = options.encoder.gpu.rules.memory_limit_bytes;
    let is_simulated = devices.gpus.iter().all(|gpu| gpu.info.is_none());
    // The GPUs of a group have equal parts of its memory: each counts as the one that has least.
    let least = devices.gpus.iter().map(|gpu| Ledger::new(gpu.memory(limit)).room()).min().unwrap_or(0);
    let machine = Machine { gpu_bytes: vec![least; count], host_bytes: host.for_weights(), speeds: Speeds::default() };
    let mut chosen: Option<(Plan, ModelNeeds)> = None;
    for (at, model) in options.models.iter().enumerate() {
        let Some(generate) = spec(at).generates().filter(|_| may_use_gpus(model)) else { continue };
        if is_divided {
            let refused = Refused("chat.gpu_layers asks for a division of its own: leave it at auto".to_owned());
            return Err(LoadError::SeveralGpus { model: model.name.clone(), refused });
        }
        let needs = needs(generate, &sizes(&DecoderFiles::of(&generate.source)?, is_simulated)?);
        match plan(strategy, &needs, &machine) {
            Ok(plan) if chosen.as_ref().is_none_or(|(chosen, _)| chosen.gpus() < plan.gpus()) => {
                chosen = Some((plan, needs));
            }
            Ok(_) => {}
            // Without a way for it the CPU computes it; that is told where its layers are divided.
            Err(refused) if strategy == Strategy::Auto => {
                tracing::warn!(target: "magray::engine", model = model.name, "no group of GPUs computes it: {refused}");
            }
            Err(refused) => return Err(LoadError::SeveralGpus { model: model.name.clone(), refused }),
        }
    }
    let Some((plan, needs)) = chosen.filter(|(plan, _)| !plan.is_alone()) else { return Ok((devices, Formed::Single)) };
    let size = plan.gpus();
    if count % size > 0 {
        devices.left = devices.gpus[count - count % size..].iter().map(|gpu| gpu.name).collect();
        let left: Vec<String> = devices.left.iter().map(ToString::to_string).collect();
        let left = left.join(", ");
        tracing::warn!(target: "magray::engine", left, size, "GPUs that are not enough for another group are not used");
    }
    devices.gpus = devices.gpus.chunks_exact(size).map(Gpu::group).collect();
    let grouping = Grouping { ranks: plan.ranks, stages: plan.stages.len(), needs, reason: plan.reason };
    tracing::info!(target: "magray::engine", groups = devices.gpus.len(), size, "GPUs compute together: {}", grouping.reason);
    Ok((devices, Formed::Groups(grouping)))
}

fn may_use_gpus(model: &EngineModel) -> bool {
    model.assigned != Some(DeviceName::Cpu)
}

/// How a model lies on a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OnGroup {
    pub(super) layout: GroupLayout,
    pub(super) cpu_layers: usize,
    /// What its weights count as in the memory of all GPUs together: as many times what the fullest has.
    pub(super) bytes: u64,
}

impl Grouping {
    /// Why a model with these needs is on a group.
    pub(super) fn reason(&self, needs: &ModelNeeds) -> String {
        match *needs == self.needs {
            true => self.reason.clone(),
            false => format!("the GPUs are a group for another model: {}", self.reason),
        }
    }

    /// How a model lies on a group whose GPUs each have this much room for weights, and whether the host has room for so many layers of the
    /// CPU; `None`: it has no place there.
    pub(super) fn place(
        &self,
        spec: &GenerateSpec,
        needs: &ModelNeeds,
        (room, token_bytes): (u64, u64),
        has_room: impl Fn(usize) -> bool,
    ) -> Option<OnGroup> {
        let ranks = NonZeroUsize::new(self.ranks)?;
        if self.ranks > needs.heads || self.stages > needs.layers {
            return None;
        }
        let of_stage = needs.shared_room(room, self.ranks);
        let (cpu_layers, stages) = needs.placed(&vec![of_stage; self.stages], u64::MAX)?;
        if !has_room(cpu_layers) {
            return None;
        }
        let layers = stages.iter().copied().max().unwrap_or(0) as u64;
        let gpus = self.gpus() as u64;
        let of_stage = |(at, layers): (usize, &usize)| {
            *layers as u64 * needs.layer_bytes + needs.ends(at, self.stages, cpu_layers)
        };
        let largest = stages.iter().enumerate().map(of_stage).max().unwrap_or(0);
        let fullest = needs.shared_part(largest, self.ranks);
        // Ranks that share a head of keys and values each keep it.
        let kv_heads = spec.decoder.kv_heads as u64;
        let of_rank = kv_heads.div_ceil(self.ranks as u64);
        let token = (token_bytes * layers * of_rank).div_ceil(needs.layers as u64 * kv_heads);
        let stages = stages.into_iter().map(NonZeroUsize::new).collect::<Option<_>>()?;
        let layout = GroupLayout { ranks, stages, kv_token_bytes: token * gpus };
        Some(OnGroup { layout, cpu_layers, bytes: fullest * gpus })
    }
}

#[cfg(test)]
impl Grouping {
    /// Groups for a model that needs this, and why.
    pub(super) fn of(ranks: usize, stages: usize, (needs, reason): (ModelNeeds, &str)) -> Self {
        Self { ranks, stages, needs, reason: reason.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executors::ModelSource;
    use crate::spec::decoder::DecoderSource;
    use crate::testing::tiny_decoder;

    #[test]
    fn a_model_lies_on_ranks_and_stages_and_counts_as_its_fullest_gpu() {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), 4).unwrap();
        let spec = ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned())).spec().unwrap();
        let generate = spec.generates().unwrap();
        let needs = needs(generate, &sizes(&DecoderFiles::of(&generate.source).unwrap(), true).unwrap());
        let token = tiny_decoder::KV_TOKEN_BYTES;
        let of = |ranks, stages, room| {
            let grouping = Grouping::of(ranks, stages, (needs, ""));
            grouping.place(generate, &needs, (room, token), |_| true)
        };
        let whole = needs.whole();
        let shared = of(2, 1, whole).unwrap();
        assert_eq!((shared.layout.gpus(), shared.cpu_layers, shared.layout.kv_token_bytes), (2, 0, token));
        assert!(shared.bytes >= whole && shared.bytes <= whole + 2, "{} of {whole}", shared.bytes);
        // Two heads of keys and values on four ranks: each is kept twice.
        assert_eq!(of(4, 1, whole).unwrap().layout.kv_token_bytes, 2 * token);
        let staged = of(1, 2, whole).unwrap();
        assert_eq!(staged.layout.stages.iter().map(|layers| layers.get()).collect::<Vec<_>>(), [1, 1]);
        assert_eq!((of(1, 3, whole), of(8, 1, whole)), (None, None), "more stages than layers, more ranks than heads");
        let beside = of(2, 1, (needs.layer_bytes + needs.head_bytes).div_ceil(2)).unwrap();
        assert_eq!((beside.cpu_layers, beside.layout.stages.len()), (1, 1));
    }
}
