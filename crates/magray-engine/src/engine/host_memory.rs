//! What the host's memory has for the weights of language models, as it was when the engine started.
//! Holds nothing of it: who places a model asks.

use super::EngineOptions;
use crate::executors::cpu::available_bytes;
use crate::spec::ModelSpec;

/// The memory of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostMemory {
    /// Bytes that were free for programs; all that can be where the system does not say.
    available: u64,
}

impl HostMemory {
    /// As it is now: to be asked before models take their part.
    pub(super) fn of(options: &EngineOptions) -> Self {
        #[cfg(feature = "testing")]
        let available = options.host_bytes.unwrap_or_else(available_bytes);
        #[cfg(not(feature = "testing"))]
        let available = {
            let _ = options;
            available_bytes()
        };
        Self::with(available)
    }

    /// One with so many bytes; none: it is not known.
    pub(super) fn with(available: u64) -> Self {
        Self { available: if available == 0 { u64::MAX } else { available } }
    }

    /// More than this cannot be there at once.
    pub(super) fn available(self) -> u64 {
        self.available
    }

    /// What weights may take of it beside all else: three quarters.
    pub(super) fn for_weights(self) -> u64 {
        self.available / 4 * 3
    }

    /// Whether the CPU can compute a model by itself, where it need not.
    pub(super) fn may_have(self, spec: &ModelSpec) -> bool {
        spec.generates().is_none_or(|generate| generate.weight_bytes <= self.for_weights())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executors::ModelSource;
    use crate::spec::decoder::DecoderSource;

    #[test]
    fn the_cpu_may_have_models_that_the_host_has_room_for() {
        let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-8b".parse().unwrap()));
        let spec = source.spec().unwrap();
        let may = |bytes| HostMemory::with(bytes).may_have(&spec);
        assert_eq!([22_000_000_000, 20_000_000_000, 0].map(may), [true, false, true], "nothing is known of the last");
        let encoder = ModelSource::Synthetic("tiny".parse().unwrap()).spec().unwrap();
        assert!(HostMemory::with(1).may_have(&encoder), "encoders are small");
    }
}
