//! Makes groups of the GPUs, where a language model needs several of them or the settings say so, and divides models between their GPUs.
//! Starts nothing, and reads no more than how large tensors are.

use super::devices::{Devices, Gpu, LeftOver};
use super::host_memory::HostMemory;
use super::{EngineModel, EngineOptions};
use crate::decoder::{DecoderBytes, DecoderFiles, LinearBytes, stored_bytes};
use crate::encoder::LoadError;
use crate::executors::{GpuLayers, GroupLayout};
use crate::health;
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
    let (gpus, given_up) = in_service(&devices.gpus, &health::Ledger::open(options.encoder.gpu.state_file.clone()));
    let (count, strategy) = (gpus.len(), options.strategy);
    let is_divided = options.encoder.gpu_layers != GpuLayers::Auto;
    let asked = match strategy {
        Strategy::Tensor => Some("tensor"),
        Strategy::Pipeline => Some("pipeline"),
        Strategy::Auto | Strategy::Data => None,
    };
    if let Some(word) = asked.filter(|_| count == 1) {
        let (name, only) = (gpus[0].name, if given_up.is_empty() { "" } else { " that was not given up" });
        let why = format!("gpu.multi_gpu.strategy is {word}, and {name} is the only GPU{only}: it computes by itself");
        return Ok((devices, Formed::Alone(why)));
    }
    if count < 2
        || !gpus.iter().all(Gpu::generates)
        || strategy == Strategy::Data
        || (strategy == Strategy::Auto && is_divided)
    {
        return Ok((devices, Formed::Single));
    }
    let limit = options.encoder.gpu.rules.memory_limit_bytes;
    let is_simulated = gpus.iter().all(|gpu| gpu.info.is_none());
    // The GPUs of a group have equal parts of its memory: each counts as the one that has least.
    let least = gpus.iter().map(|gpu| Ledger::new(gpu.memory(limit)).room()).min().unwrap_or(0);
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
    // Those that were given up wait in groups of their own for their reset.
    let (groups, waiting) = (gpus.chunks_exact(size), given_up.chunks_exact(size));
    let (too_few, out) = (groups.remainder(), waiting.remainder());
    devices.gpus = groups.chain(waiting).map(Gpu::group).collect();
    let left = |gpus: &[Gpu], why| gpus.iter().map(|gpu| (gpu.name, why)).collect::<Vec<_>>();
    devices.left = [left(too_few, LeftOver::TooFew), left(out, LeftOver::GivenUp)].concat();
    let mut reason = plan.reason;
    if !too_few.is_empty() {
        let left = listed(too_few);
        tracing::warn!(target: "magray::engine", left, size, "GPUs that are not enough for another group are not used");
    }
    if !out.is_empty() {
        let left = listed(out);
        reason += &format!("; no group has {left}, given up before: magray gpu reset, and start magray again");
    }
    let grouping = Grouping { ranks: plan.ranks, stages: plan.stages.len(), needs, reason };
    tracing::info!(target: "magray::engine", groups = devices.gpus.len(), size, "GPUs compute together: {}", grouping.reason);
    Ok((devices, Formed::Groups(grouping)))
}

/// The GPUs that groups are planned for, and those that were given up: a group is out with any of its GPUs. Where all were given up it is
/// planned for all.
fn in_service(gpus: &[Gpu], ledger: &health::Ledger) -> (Vec<Gpu>, Vec<Gpu>) {
    let is_out = |gpu: &Gpu| gpu.uuids.iter().any(|uuid| ledger.is_out(uuid).is_some());
    let (out, well): (Vec<Gpu>, Vec<Gpu>) = gpus.iter().cloned().partition(is_out);
    if well.is_empty() { (out, well) } else { (well, out) }
}

fn listed(gpus: &[Gpu]) -> String {
    gpus.iter().map(|gpu| gpu.name.to_string()).collect::<Vec<_>>().join(", ")
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
    use crate::engine::devices::find;
    use crate::executors::ModelSource;
    use crate::spec::decoder::DecoderSource;
    use crate::testing::{SimulatedGpu, tiny_decoder};
    use magray_core::DeviceChoice;
    use magray_core::schedule::Fallback;
    use std::path::Path;

    /// GPUs of which two have room for the model, where some were given up.
    fn formed(folder: &Path, gpus: usize, strategy: Strategy, given_up: &[&str]) -> (Devices, Formed) {
        tiny_decoder::write(folder, 4).unwrap();
        let source = ModelSource::Decoder(DecoderSource::Path(folder.to_owned()));
        let spec = source.spec().unwrap();
        let mut options = EngineOptions { strategy, ..EngineOptions::on_cpu(vec![source.into()]) };
        options.encoder.device = DeviceChoice::Auto;
        let state_file = folder.join("gpus.json");
        let mut ledger = health::Ledger::open(Some(state_file.clone()));
        ledger.reset(None).unwrap();
        given_up.iter().for_each(|uuid| ledger.give_up(uuid, Fallback::Unhealthy).unwrap());
        options.encoder.gpu.state_file = Some(state_file);
        let gpu = |index| SimulatedGpu { index, memory_bytes: 150 << 10, kv_bytes: 1 << 16, ..SimulatedGpu::default() };
        options.simulated_gpus = (0..gpus).map(gpu).collect();
        let devices = find(&options).unwrap();
        form(devices, &options, HostMemory::with(0), |_| &spec).unwrap()
    }

    #[test]
    fn gpus_that_were_given_up_make_no_group_while_others_can() {
        let folder = tempfile::tempdir().unwrap();
        let sim = DeviceName::Simulated;
        let names = |devices: &Devices| devices.gpus.iter().map(Gpu::names).collect::<Vec<_>>();
        let (devices, formed_) = formed(folder.path(), 3, Strategy::Auto, &["SIM-0"]);
        assert_eq!((names(&devices), &*devices.left), (vec![vec![sim(1), sim(2)]], &[(sim(0), LeftOver::GivenUp)][..]));
        let Formed::Groups(grouping) = formed_ else { panic!("they make a group") };
        assert!(
            grouping.reason.contains("no group has sim:0, given up before: magray gpu reset"),
            "{}",
            grouping.reason
        );
        let refused = devices.allowed_for(Some(sim(0))).unwrap_err().to_string();
        assert!(refused.contains("assigned to sim:0, which was given up and is in no group"), "{refused}");
        let (devices, _) = formed(folder.path(), 4, Strategy::Auto, &["sim-1"]);
        assert_eq!(names(&devices), [[sim(0), sim(2)]]);
        assert_eq!(devices.left, [(sim(3), LeftOver::TooFew), (sim(1), LeftOver::GivenUp)]);
        // These wait for a reset.
        let (devices, _) = formed(folder.path(), 4, Strategy::Auto, &["SIM-0", "SIM-2"]);
        assert_eq!((names(&devices), devices.left.len()), (vec![vec![sim(1), sim(3)], vec![sim(0), sim(2)]], 0));
        let (devices, _) = formed(folder.path(), 2, Strategy::Auto, &["SIM-0", "SIM-1"]);
        assert_eq!((names(&devices), devices.left.len()), (vec![vec![sim(0), sim(1)]], 0));
        // The one that is left computes by itself, and the other does when it is reset.
        let (devices, formed_) = formed(folder.path(), 2, Strategy::Pipeline, &["SIM-0"]);
        assert_eq!((names(&devices), devices.left.len()), (vec![vec![sim(0)], vec![sim(1)]], 0));
        assert!(matches!(formed_, Formed::Alone(why) if why.contains("sim:1 is the only GPU that was not given up")));
    }

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
