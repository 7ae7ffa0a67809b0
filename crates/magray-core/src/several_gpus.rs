//! Decides how several GPUs compute a model: each by itself, together in every layer, or one part of the layers after the other. What fits
//! decides first, then the predicted time of a token; the choice comes with its reason.
//! Asks no device: who calls it says what each may hold.

use std::fmt;

/// How work is to be divided between several GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// As few GPUs as a model fits, in the way that is predicted to be faster.
    #[default]
    Auto,
    /// Each GPU computes whole texts by itself.
    Data,
    /// All GPUs share every layer.
    Tensor,
    /// Each GPU has some of the layers.
    Pipeline,
}

/// What a model needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelNeeds {
    /// Layers.
    pub layers: usize,
    /// Bytes of the largest.
    pub layer_bytes: u64,
    /// Bytes of the table of tokens, which is with the first layer.
    pub table_bytes: u64,
    /// Bytes of the head, which is with the last.
    pub head_bytes: u64,
    /// Bytes of a table that is the head too, and counts as that: where the first layer and the last are not in one place, both have it.
    pub tied_bytes: u64,
    /// Heads of attention: more GPUs than that cannot share a layer.
    pub heads: usize,
    /// Heads of keys and values: GPUs that share a layer have whole ones, where there are enough.
    pub kv_heads: usize,
    /// Inner numbers of a feed-forward layer.
    pub inner: usize,
}

/// What there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// By GPU: what weights may take.
    pub gpu_bytes: Vec<u64>,
    /// What weights may take of the host's memory, where the CPU may compute layers.
    pub host_bytes: u64,
    /// How fast things go.
    pub speeds: Speeds,
}

/// What predictions are made with: for choosing between ways, not for promises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Bytes of weights that a GPU reads in a microsecond.
    pub gpu_bytes_us: f64,
    /// The same of the CPU.
    pub host_bytes_us: f64,
    /// Microseconds of adding up the rows of a token among GPUs, twice a layer.
    pub exchange_us: f64,
    /// Microseconds of handing the rows of a token from one stage to the next.
    pub hop_us: f64,
}

impl Default for Speeds {
    /// A GPU of the data centre, DDR5 memory, and rows that go through the host. The last two are estimates.
    fn default() -> Self {
        Self { gpu_bytes_us: 2e6, host_bytes_us: 5e4, exchange_us: 60.0, hop_us: 60.0 }
    }
}

/// How a model is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// GPUs that share each layer.
    pub ranks: usize,
    /// Layers of each stage; a stage has `ranks` GPUs.
    pub stages: Vec<usize>,
    /// First layers that the CPU computes, with the table.
    pub cpu_layers: usize,
    /// How many such groups there are; each has all of the model.
    pub groups: usize,
    /// Why.
    pub reason: String,
}

impl Plan {
    /// GPUs that a group has.
    pub fn gpus(&self) -> usize {
        self.ranks * self.stages.len()
    }

    /// Whether each GPU computes by itself.
    pub fn is_alone(&self) -> bool {
        self.gpus() == 1
    }
}

/// Why a model cannot be computed as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// What may be done where a model does not fit.
pub const MAKE_IT_FIT: &str = "take files with fewer bits a weight, or more GPUs (gpu.multi_gpu), or more memory";

/// How a model is computed by the GPUs of a machine; there is at least one.
pub fn plan(strategy: Strategy, needs: &ModelNeeds, machine: &Machine) -> Result<Plan, Refused> {
    assert!(!machine.gpu_bytes.is_empty() && needs.layers > 0, "a GPU, and a model of layers");
    assert!(needs.heads >= needs.kv_heads && needs.kv_heads > 0, "heads, and as many queries for each key");
    let planning = Planning { needs, machine, count: machine.gpu_bytes.len() };
    match strategy {
        Strategy::Auto => planning.by_fit_and_speed(),
        Strategy::Data => {
            planning.alone("each GPU computes whole texts, as the settings say").ok_or_else(|| planning.misfit(1))
        }
        Strategy::Tensor => planning.shared()?,
        Strategy::Pipeline => planning.staged()?,
    }
    .or_else(|misfit| planning.with_cpu(strategy, misfit))
}

struct Planning<'a> {
    needs: &'a ModelNeeds,
    machine: &'a Machine,
    count: usize,
}

/// Why a model does not fit, and the bytes that are missing.
struct Misfit {
    why: String,
    missing: u64,
}

impl Misfit {
    fn refused(self) -> Refused {
        let Self { why, missing } = self;
        let missing = if missing == 0 { String::new() } else { format!(": {} are missing", size(missing)) };
        Refused(format!("{why}{missing}; {MAKE_IT_FIT}"))
    }
}

/// A way that fits.
struct Way {
    ranks: usize,
    stages: Vec<usize>,
    token_us: f64,
}

impl Planning<'_> {
    fn whole(&self) -> u64 {
        self.needs.whole()
    }

    fn least(&self) -> u64 {
        self.machine.gpu_bytes.iter().copied().min().unwrap_or(0)
    }

    fn alone(&self, why: &str) -> Option<Plan> {
        (self.whole() <= self.least()).then(|| Plan {
            ranks: 1,
            stages: vec![self.needs.layers],
            cpu_layers: 0,
            groups: self.count,
            reason: format!("{} fit one GPU, which has room for {}: {why}", size(self.whole()), size(self.least())),
        })
    }

    fn by_fit_and_speed(&self) -> Result<Plan, Misfit> {
        if let Some(plan) = self.alone("each computes whole texts, which is the most work in a second") {
            return Ok(plan);
        }
        let fitting = (2..=self.count).find_map(|gpus| {
            let mut ways: Vec<Way> = self.ways(gpus).collect();
            ways.sort_by(|a, b| a.token_us.total_cmp(&b.token_us));
            (!ways.is_empty()).then_some((gpus, ways))
        });
        let Some((gpus, mut ways)) = fitting else { return Err(self.misfit(self.count)) };
        let other = ways.iter().find(|way| way.ranks != ways[0].ranks).map(|way| (way.name(), way.token_us));
        let best = ways.swap_remove(0);
        let beside = match other {
            Some((name, us)) => {
                format!("; {} is predicted to take {} a token, {name} {}", best.name(), ms(best.token_us), ms(us))
            }
            None => format!("; {} is the only way that fits", best.name()),
        };
        let (whole, least) = (size(self.whole()), size(self.least()));
        let reason = format!("{whole} do not fit one GPU, which has room for {least}, and fit {gpus}{beside}");
        Ok(Plan { ranks: best.ranks, stages: best.stages, cpu_layers: 0, groups: self.count / gpus, reason })
    }

    /// All ways for so many GPUs that fit.
    fn ways(&self, gpus: usize) -> impl Iterator<Item = Way> {
        let divides = (1..=gpus).filter(move |ranks| gpus.is_multiple_of(*ranks));
        divides.filter_map(move |ranks| self.way(ranks, gpus / ranks))
    }

    /// Where each of the first groups of this size has room.
    fn way(&self, ranks: usize, stages: usize) -> Option<Way> {
        let (needs, gpus) = (self.needs, ranks * stages);
        if ranks > needs.heads || stages > needs.layers {
            return None;
        }
        let groups = self.machine.gpu_bytes.chunks_exact(gpus);
        // One division for all groups: what the smallest has room for at each place.
        let room = |stage: usize| {
            let of = |group: &[u64]| group[stage * ranks..(stage + 1) * ranks].iter().copied().min().unwrap_or(0);
            needs.shared_room(groups.clone().map(of).min().unwrap_or(0), ranks)
        };
        let rooms: Vec<u64> = (0..stages).map(room).collect();
        let stages = needs.stages_within(&rooms, needs.layers)?;
        Some(Way { ranks, token_us: self.token_us(ranks, stages.len()), stages })
    }

    /// A token of one sequence: all weights are read, by stages one after the other.
    fn token_us(&self, ranks: usize, stages: usize) -> f64 {
        let Speeds { gpu_bytes_us, exchange_us, hop_us, .. } = self.machine.speeds;
        let exchanges = if ranks > 1 { 2.0 * self.needs.layers as f64 * exchange_us } else { 0.0 };
        let (part, of) = self.needs.fullest(ranks);
        self.whole() as f64 / gpu_bytes_us * part as f64 / of as f64 + exchanges + (stages - 1) as f64 * hop_us
    }

    /// More GPUs than heads is not a question of memory.
    fn shared(&self) -> Result<Result<Plan, Misfit>, Refused> {
        let heads = self.needs.heads;
        if self.count > heads {
            return Err(Refused(format!(
                "{} GPUs cannot share layers of {heads} heads: name at most {heads} in gpu.multi_gpu.device_ids",
                self.count
            )));
        }
        Ok(self.way(self.count, 1).map(|way| self.asked(way, "tensor")).ok_or_else(|| self.misfit(self.count)))
    }

    fn staged(&self) -> Result<Result<Plan, Misfit>, Refused> {
        let layers = self.needs.layers;
        if self.count > layers {
            return Err(Refused(format!(
                "{layers} layers cannot be on {} GPUs: name at most {layers} in gpu.multi_gpu.device_ids",
                self.count
            )));
        }
        Ok(self.way(1, self.count).map(|way| self.asked(way, "pipeline")).ok_or_else(|| self.misfit(self.count)))
    }

    fn asked(&self, way: Way, strategy: &str) -> Plan {
        let mut reason =
            format!("gpu.multi_gpu.strategy is {strategy}, and {} fit {} GPUs", size(self.whole()), self.count);
        let fullest @ (part, of) = self.needs.fullest(way.ranks);
        if part * way.ranks > of {
            let is_by_heads = fullest == self.needs.fullest_by_heads(way.ranks);
            let what = if is_by_heads { "heads" } else { "parts of a feed-forward layer" };
            reason += &format!(", of which the fullest has {part} of {of} {what}");
        }
        Plan { ranks: way.ranks, stages: way.stages, cpu_layers: 0, groups: 1, reason }
    }

    /// What is missing on so many GPUs.
    fn misfit(&self, gpus: usize) -> Misfit {
        let (whole, needs) = (self.whole(), size(self.whole()));
        if gpus == 1 {
            let least = self.least();
            let missing = whole.saturating_sub(least);
            return Misfit {
                why: format!("the model needs {needs}, and one GPU has room for {}", size(least)),
                missing,
            };
        }
        let all: u64 = self.machine.gpu_bytes.iter().take(gpus).sum();
        let why = format!("the model needs {needs}, and {gpus} GPUs have room for {}", size(all));
        let missing = whole.saturating_sub(all);
        // Layers are not cut in two, parts of a layer are equal.
        let why = if missing == 0 { format!("{why}, but not each for its part") } else { why };
        Misfit { why, missing }
    }

    /// The last layers on the GPUs, one stage each, and the first ones on the CPU.
    fn with_cpu(&self, strategy: Strategy, misfit: Misfit) -> Result<Plan, Refused> {
        // The CPU has whole layers: it takes no part of those that GPUs share.
        if matches!(strategy, Strategy::Tensor) && self.count > 1 {
            return Err(misfit.refused());
        }
        let (needs, host) = (self.needs, self.machine.host_bytes);
        // Each GPU has the same layers then.
        let each = [self.least()];
        let rooms = match strategy {
            Strategy::Data => &each[..],
            _ => &self.machine.gpu_bytes[..self.count.min(needs.layers)],
        };
        let Some((cpu_layers, stages, on_cpu)) = needs.beside_cpu(rooms) else {
            let why = format!("{}, which is too little for one layer and the head", misfit.why);
            return Err(Misfit { why, ..misfit }.refused());
        };
        let why = misfit.why;
        if on_cpu > host {
            let (left, room) = (size(on_cpu), size(host));
            let why = format!("{why}; {left} of it would be left to the CPU, whose memory has room for {room}");
            return Err(Misfit { why, missing: on_cpu - host }.refused());
        }
        let groups = if stages.len() == 1 { self.count } else { 1 };
        let reason = format!("{why}: the CPU computes the first {cpu_layers} of {} layers", needs.layers);
        Ok(Plan { ranks: 1, stages, cpu_layers, groups, reason })
    }
}

/// How many inner numbers of a feed-forward layer stay together where so many GPUs share it: the largest blocks of weights of which each has
/// one, so that no weights are unpacked to be cut.
pub fn inner_unit(inner: usize, ranks: usize) -> usize {
    let are_enough = |unit: &usize| inner.is_multiple_of(*unit) && inner / unit >= ranks;
    [256, 128, 64, 32].into_iter().find(are_enough).unwrap_or(1)
}

impl ModelNeeds {
    /// All of it.
    pub fn whole(&self) -> u64 {
        self.table_bytes + self.head_bytes + self.layers as u64 * self.layer_bytes
    }

    /// What the fullest of GPUs has that share a layer: so many of so many heads, or parts of inner numbers where that is more.
    pub fn fullest(&self, ranks: usize) -> (usize, usize) {
        let (heads, inner) = (self.fullest_by_heads(ranks), self.fullest_by_inner(ranks));
        if inner.0 * heads.1 > heads.0 * inner.1 { inner } else { heads }
    }

    /// Heads of keys and values are not cut; where there are more GPUs than such heads, those that have the same divide its queries.
    fn fullest_by_heads(&self, ranks: usize) -> (usize, usize) {
        match ranks <= self.kv_heads {
            true => (self.kv_heads.div_ceil(ranks), self.kv_heads),
            false => ((self.heads / self.kv_heads).div_ceil(ranks / self.kv_heads), self.heads),
        }
    }

    fn fullest_by_inner(&self, ranks: usize) -> (usize, usize) {
        let units = self.inner / inner_unit(self.inner, ranks);
        (units.div_ceil(ranks), units)
    }

    /// What GPUs that share layers have room for together, where each has this much.
    pub fn shared_room(&self, each: u64, ranks: usize) -> u64 {
        let (part, of) = self.fullest(ranks);
        u64::try_from(u128::from(each) * of as u128 / part as u128).unwrap_or(u64::MAX)
    }

    /// What the fullest of GPUs that share this has of it.
    pub fn shared_part(&self, bytes: u64, ranks: usize) -> u64 {
        let (part, of) = self.fullest(ranks);
        u64::try_from((u128::from(bytes) * part as u128).div_ceil(of as u128)).unwrap_or(u64::MAX)
    }

    /// Layers that the CPU computes first, with the table, and those of each stage behind them, where stages have this room: as few on the CPU
    /// as can be. `None`: it has no place.
    pub fn placed(&self, rooms: &[u64], host_bytes: u64) -> Option<(usize, Vec<usize>)> {
        if let Some(stages) = self.stages_within(rooms, self.layers) {
            return Some((0, stages));
        }
        let (cpu_layers, stages, on_cpu) = self.beside_cpu(rooms)?;
        (on_cpu <= host_bytes).then_some((cpu_layers, stages))
    }

    /// The same where some layers must be on the CPU, and the bytes that are left to it.
    fn beside_cpu(&self, rooms: &[u64]) -> Option<(usize, Vec<usize>, u64)> {
        let table = self.table_bytes + self.tied_bytes;
        (1..self.layers).find_map(|cpu_layers| {
            let stages = self.stages_within(rooms, self.layers - cpu_layers)?;
            Some((cpu_layers, stages, table + cpu_layers as u64 * self.layer_bytes))
        })
    }

    /// What a stage of so many has beside layers, where the CPU has so many of them: the first the table, unless that is on the CPU, and the
    /// last the head.
    pub fn ends(&self, stage: usize, stages: usize, cpu_layers: usize) -> u64 {
        let is_last = stage + 1 == stages;
        let head = if is_last { self.head_bytes } else { 0 };
        if stage > 0 || cpu_layers > 0 {
            return head;
        }
        let tied = if is_last { 0 } else { self.tied_bytes };
        self.table_bytes + tied + head
    }

    /// How many of the last `layers` each stage has, in proportion to its room; `None` where they do not fit or a stage has none.
    fn stages_within(&self, rooms: &[u64], layers: usize) -> Option<Vec<usize>> {
        let (layer, cpu_layers) = (self.layer_bytes.max(1), self.layers - layers);
        let fit = |(stage, room): (usize, &u64)| {
            (room.saturating_sub(self.ends(stage, rooms.len(), cpu_layers)) / layer) as usize
        };
        let most: Vec<usize> = rooms.iter().enumerate().map(fit).collect();
        let all: usize = most.iter().sum();
        if rooms.is_empty() || all < layers || rooms.len() > layers || most.contains(&0) {
            return None;
        }
        let mut stages: Vec<usize> = most.iter().map(|most| (most * layers / all).clamp(1, *most)).collect();
        // Rounding left some out, or the least of one put some in.
        while stages.iter().sum::<usize>() != layers {
            let has_more = stages.iter().sum::<usize>() < layers;
            let free = |at: &usize| most[*at] - stages[*at];
            let at = if has_more {
                (0..stages.len()).max_by_key(free)?
            } else {
                (0..stages.len()).filter(|at| stages[*at] > 1).min_by_key(free)?
            };
            if has_more {
                stages[at] += 1;
            } else {
                stages[at] -= 1;
            }
        }
        Some(stages)
    }
}

impl Way {
    fn name(&self) -> String {
        match (self.ranks, self.stages.len()) {
            (1, stages) => format!("layers in {stages} stages"),
            (ranks, 1) => format!("sharing each layer among {ranks}"),
            (ranks, stages) => format!("{stages} stages of {ranks} that share each layer"),
        }
    }
}

/// So many bytes, for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "0 GB".to_owned(),
        1..1_000_000_000 => format!("{} MB", bytes.div_ceil(1_000_000)),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn ms(us: f64) -> String {
    format!("{:.1} ms", us / 1e3)
}

#[cfg(test)]
mod tests;
