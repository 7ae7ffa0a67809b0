//! Which GPUs the environment lets this process see.
//! Reads no variable: the caller gives the values.

use super::gpu_info::GpuInfo;

/// What `NVIDIA_VISIBLE_DEVICES` asks for, and what `CUDA_VISIBLE_DEVICES` said.
///
/// The driver itself honours `CUDA_VISIBLE_DEVICES`; its value is kept for the explanation only. The other variable is
/// meant for container runtimes: where one has applied it, its numbers count the host's GPUs and not those seen here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    nvidia: Option<String>,
    cuda: Option<String>,
    rule: Rule,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Rule {
    #[default]
    All,
    None,
    Listed(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// A number in the order of the bus, as `nvidia-smi` counts.
    Index(usize),
    /// A UUID or its beginning, with `GPU-` or `MIG-`.
    Uuid(String),
    /// Something else; it names no GPU.
    Unknown,
}

impl Visible {
    /// Every GPU that the driver shows.
    pub fn all() -> Self {
        Self::default()
    }

    /// Reads the values of `NVIDIA_VISIBLE_DEVICES` and `CUDA_VISIBLE_DEVICES`; `None` where one is not set.
    pub fn parse(nvidia: Option<&str>, cuda: Option<&str>) -> Self {
        let rule = match nvidia.map(str::trim) {
            // Empty and `void` tell a container runtime to do nothing; where GPUs are handed in by other means, `void` is
            // set beside them. A folder name stands for a list that the runtime finds elsewhere.
            None | Some("" | "all" | "void") => Rule::All,
            Some("none") => Rule::None,
            Some(path) if path.starts_with('/') => Rule::All,
            Some(list) => Rule::Listed(list.split(',').map(|word| Entry::parse(word.trim())).collect()),
        };
        Self { nvidia: nvidia.map(str::to_owned), cuda: cuda.map(str::to_owned), rule }
    }

    /// The GPUs that may be used, in the order given, numbered anew from 0.
    pub(super) fn choose(&self, gpus: Vec<GpuInfo>) -> Vec<GpuInfo> {
        let mut chosen: Vec<GpuInfo> = match &self.rule {
            Rule::All => gpus,
            Rule::None => Vec::new(),
            Rule::Listed(entries) => {
                let on_bus = bus_order(&gpus);
                let is_applied = is_applied(entries, gpus.len());
                let allows = |at: usize, gpu: &GpuInfo| entries.iter().any(|entry| entry.names(on_bus[at], gpu));
                let numbered = gpus.into_iter().enumerate();
                numbered.filter(|(at, gpu)| is_applied || allows(*at, gpu)).map(|(_, gpu)| gpu).collect()
            }
        };
        for (index, gpu) in chosen.iter_mut().enumerate() {
            gpu.index = index;
        }
        chosen
    }

    /// The variable that must have hidden everything, with its value: asked when no GPU is left.
    ///
    /// `was_shown` says whether the driver had shown any.
    pub(super) fn culprit(&self, was_shown: bool) -> Option<(&'static str, String)> {
        match (&self.nvidia, &self.cuda) {
            (Some(value), _) if was_shown || self.rule == Rule::None => Some(("NVIDIA_VISIBLE_DEVICES", value.clone())),
            (_, Some(value)) if !was_shown => Some(("CUDA_VISIBLE_DEVICES", value.clone())),
            _ => None,
        }
    }
}

impl Entry {
    fn parse(word: &str) -> Self {
        if let Ok(index) = word.parse() {
            return Self::Index(index);
        }
        let is_uuid = ["GPU-", "MIG-"].iter().any(|kind| word.len() > kind.len() && starts_with(word, kind));
        if is_uuid { Self::Uuid(word.to_owned()) } else { Self::Unknown }
    }

    fn names(&self, on_bus: usize, gpu: &GpuInfo) -> bool {
        match self {
            Self::Index(index) => *index == on_bus,
            Self::Uuid(uuid) => starts_with(&gpu.uuid, uuid),
            Self::Unknown => false,
        }
    }
}

/// Whether a UUID begins so; letters count the same in both cases.
pub(super) fn starts_with(uuid: &str, beginning: &str) -> bool {
    uuid.get(..beginning.len()).is_some_and(|head| head.eq_ignore_ascii_case(beginning))
}

/// Whether a container runtime has applied this list already: it names as many GPUs as there are, by numbers that are
/// not all here.
fn is_applied(entries: &[Entry], shown: usize) -> bool {
    let all_numbers = entries.iter().all(|entry| matches!(entry, Entry::Index(_)));
    all_numbers
        && entries.len() == shown
        && entries.iter().any(|entry| matches!(entry, Entry::Index(at) if *at >= shown))
}

fn bus_order(gpus: &[GpuInfo]) -> Vec<usize> {
    let rank = |gpu: &GpuInfo| gpus.iter().filter(|other| other.pci_bus_id < gpu.pci_bus_id).count();
    gpus.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::super::gpu::tests::gpu;
    use super::*;

    /// Three GPUs whose order on the bus is the reverse of the driver's.
    fn machine() -> Vec<GpuInfo> {
        vec![
            gpu(0, "GPU-aaaa1111", "0000:30:00.0"),
            gpu(1, "GPU-aabb2222", "0000:20:00.0"),
            gpu(2, "GPU-cccc3333", "0000:10:00.0"),
        ]
    }

    fn chosen(value: &str) -> Vec<u32> {
        Visible::parse(Some(value), None).choose(machine()).iter().map(|gpu| gpu.ordinal).collect()
    }

    #[test]
    fn words_for_everything_and_for_nothing() {
        for value in ["", "all", "void", " all ", "/var/run/devices"] {
            assert_eq!(chosen(value), [0, 1, 2], "{value:?}");
        }
        assert_eq!(Visible::parse(None, Some("1")).choose(machine()).len(), 3);
        assert!(chosen("none").is_empty());
    }

    #[test]
    fn numbers_count_along_the_bus() {
        assert_eq!(chosen("0"), [2]);
        assert_eq!(chosen("2,1"), [0, 1]);
        assert!(chosen("7").is_empty());
        assert!(chosen("x, 0:1, GPU-").is_empty());
    }

    #[test]
    fn uuids_may_be_shortened() {
        assert_eq!(chosen("GPU-aa"), [0, 1]);
        assert_eq!(chosen("gpu-AABB"), [1]);
        assert_eq!(chosen("GPU-cccc3333,0"), [2]);
        assert!(chosen("MIG-aaaa1111").is_empty());
    }

    #[test]
    fn a_list_that_a_container_runtime_applied_is_not_applied_twice() {
        let seen = |value: &str| Visible::parse(Some(value), None).choose(vec![machine().remove(1)]).len();
        assert_eq!(seen("5"), 1);
        assert_eq!(seen("0"), 1);
        assert_eq!(seen("GPU-dddd"), 0);
        assert_eq!(chosen("3,4,5"), [0, 1, 2]);
    }

    #[test]
    fn those_left_are_numbered_anew() {
        let left = Visible::parse(Some("0,2"), None).choose(machine());
        let numbers: Vec<_> = left.iter().map(|gpu| (gpu.index, gpu.ordinal)).collect();
        assert_eq!(numbers, [(0, 0), (1, 2)]);
    }

    #[test]
    fn the_variable_that_hid_all_is_named() {
        let both = Visible::parse(Some("7"), Some("-1"));
        assert_eq!(both.culprit(true), Some(("NVIDIA_VISIBLE_DEVICES", "7".to_owned())));
        assert_eq!(both.culprit(false), Some(("CUDA_VISIBLE_DEVICES", "-1".to_owned())));
        let none = Visible::parse(Some("none"), None);
        assert_eq!(none.culprit(false), Some(("NVIDIA_VISIBLE_DEVICES", "none".to_owned())));
        assert_eq!(Visible::all().culprit(false), None);
    }
}
