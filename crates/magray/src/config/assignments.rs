//! The devices that models are assigned to by hand.
//! Does not know which devices there are.

use magray_core::DeviceName;
use magray_engine::spec::Does;

use super::{Config, Value, value::assigned_device};

/// Models, by name or role, each with its device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Assignments(Vec<(String, DeviceName)>);

impl Assignments {
    /// The device of a model: that of its name, else that of its role.
    pub(crate) fn of(&self, name: &str, does: Does) -> Option<DeviceName> {
        let row = |wanted: &str| self.0.iter().find(|(known, _)| known == wanted).map(|(_, device)| *device);
        row(name).or_else(|| row(role(does)))
    }

    /// The device of a critic, by its name.
    pub(super) fn of_critic(&self, name: &str) -> Option<DeviceName> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, device)| *device)
    }

    /// The devices that are named.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceName> {
        self.0.iter().map(|(_, device)| *device)
    }

    /// The names that are neither a role nor one of these models and critics.
    pub(crate) fn unknown<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a str> {
        const DOES: [Does; 4] = [Does::Embed, Does::Rank, Does::Classify, Does::Generate];
        let is_known =
            |name: &str| names.iter().any(|known| known == name) || DOES.into_iter().any(|does| role(does) == name);
        self.0.iter().map(|(name, _)| name.as_str()).filter(move |name| !is_known(name))
    }
}

fn role(does: Does) -> &'static str {
    match does {
        Does::Embed => "embedding",
        Does::Rank => "reranker",
        Does::Classify => "classifier",
        Does::Generate => "generator",
    }
}

impl Config {
    /// The devices that models are assigned to.
    pub(crate) fn assignments(&self) -> Assignments {
        let gpu = self.whole("gpu.device_id").unwrap_or_default();
        let row = |(name, word): &(String, String)| assigned_device(word, gpu).map(|device| (name.clone(), device));
        match &self.entry("gpu.model_assignments").value {
            Value::Table(rows) => Assignments(rows.iter().filter_map(row).collect()),
            _ => Assignments::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Inputs;
    use std::ffi::OsString;

    fn ineffective(file: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("magray.toml");
        std::fs::write(&path, file).unwrap();
        let inputs = Inputs { file: Some(&path), flags: &[], env: &|_| None::<OsString>, folder: folder.path() };
        Config::resolve(&inputs).unwrap().ineffective()
    }

    #[test]
    fn what_is_meant_for_several_gpus_is_told_to_do_nothing_for_one() {
        let off = "[gpu.multi_gpu]\nstrategy = 'tensor'\ndevice_ids = [0, 1]\n";
        let told = ineffective(off);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told.iter().all(|told| told.ends_with("changes nothing while gpu.multi_gpu.enabled is false")),
            "{told:?}"
        );
        assert_eq!(ineffective(&format!("{off}enabled = true\n")), [""; 0]);
        // Models on several GPUs by hand: the strategy says how they compute others.
        let assigned = "[gpu.multi_gpu]\nstrategy = 'tensor'\n[gpu.model_assignments]\na = 'cuda:0'\nb = 'cuda:1'\n";
        assert_eq!(ineffective(assigned), [""; 0]);
    }
}
