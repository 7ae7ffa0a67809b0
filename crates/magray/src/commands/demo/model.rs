//! The model of a demonstration: the default one where it is in the store, else one that is made on the spot.
//! Pulls nothing: no network stands between a user and the first look.

use magray_engine::{
    DeviceName, EncoderOptions, Precision, PrecisionChoice, SingleDevice,
    engine::{Engine, ModelSource},
    spec::Does,
    testing::tiny_encoder,
};
use magray_load::{Pool, Tolerance, worst_cosine};

use crate::{config::Config, exit::Failure, model};

pub(super) struct DemoModel {
    pub(super) name: String,
    pub(super) source: ModelSource,
    pub(super) texts: Vec<String>,
    /// The folder of a model that was made; it goes with this.
    made: Option<tempfile::TempDir>,
}

/// What a model is called that is made on the spot.
const MADE: &str = "tiny-random";

impl DemoModel {
    pub(super) fn find(config: &Config) -> Result<Self, Failure> {
        let embeds = |source: &ModelSource| source.spec().is_ok_and(|spec| matches!(spec.does(), Does::Embed));
        // A model of the settings that is no default one may be anything: it is taken if it embeds.
        let stored = model::find(config).ok().flatten().map(ModelSource::Folder).filter(embeds);
        let (name, source, made) = match stored {
            Some(source) => (config.model()?.name, source, None),
            None => {
                let folder = tempfile::tempdir().map_err(Failure::Model)?;
                tiny_encoder::write(folder.path(), 1).map_err(Failure::Model)?;
                (MADE.to_owned(), ModelSource::Folder(folder.path().to_owned()), Some(folder))
            }
        };
        Ok(Self { name, source, texts: sentences(), made })
    }

    pub(super) fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// The texts with the vectors that the CPU computes in 32 bits, outside of the engine. A text of the pool is one number: its
    /// place among the sentences.
    pub(super) fn pool(&self, engine: &Engine) -> Result<Pool, Failure> {
        let work = engine.read(0, &self.texts, None)?;
        let options = |precision| EncoderOptions {
            precision: PrecisionChoice::Exactly(precision),
            threads: Some(1),
            ..EncoderOptions::default()
        };
        let load = |precision| {
            let opened = SingleDevice::open(&self.source, DeviceName::Cpu, &options(precision));
            opened.map_err(|reason| model::load_failure(&self.name, reason))
        };
        let mut exact = load(Precision::F32)?;
        let right = exact.run(&work)?;
        let dimensions = exact.spec().outputs();
        drop(exact);
        let rounded = load(Precision::Bf16)?.run(&work)?;
        let tolerance = Tolerance::measured(worst_cosine(&right, &rounded, dimensions));
        let places = (0_u32..).zip(&self.texts).map(|(place, _)| vec![place]).collect();
        Pool::checked(places, &right, dimensions, tolerance).map_err(|error| Failure::Demo(error.to_string()))
    }
}

/// Sentences that differ, of several lengths.
fn sentences() -> Vec<String> {
    const WHO: [&str; 8] = [
        "A grey cat",
        "The night nurse",
        "My neighbour's daughter",
        "An old ferry",
        "The committee",
        "A very small robot",
        "The baker of our street",
        "Half of the orchestra",
    ];
    const DOES: [&str; 4] = ["waits", "sings quietly", "looks for a lost key", "counts everything twice"];
    const WHERE: [&str; 4] = [
        "by the river.",
        "under the bridge, while it rains and nobody looks.",
        "in the archive.",
        "before the last train leaves for the coast.",
    ];
    let at = |who: &str, number: usize| format!("{who} {} {}", DOES[number / 4 % 4], WHERE[number % 4]);
    WHO.iter().enumerate().flat_map(|(first, who)| (0..8).map(move |step| at(who, first + 5 * step))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_differ() {
        let all = sentences();
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!((all.len(), different.len()), (64, 64));
    }
}
