//! What is known of models that may come while the server runs: where they are kept, where they go, how they stay.
//! Holds no model.

use std::sync::{Mutex, MutexGuard, PoisonError};

use magray_engine::{DeviceName, engine::ModelPlan, spec::Does, store::Store};

use super::errors::{Kind, Problem};
use crate::config::{Assignments, Config, ConfigError, ModelPlans, ModelSettings};

pub(crate) struct Catalogue {
    /// Where models are kept and pulled from; `None`: the settings name no place.
    settings: Option<ModelSettings>,
    assignments: Assignments,
    plans: Mutex<ModelPlans>,
    /// Held while a model comes, so that its number is the same everywhere.
    adding: Mutex<()>,
}

impl Catalogue {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        Ok(Self {
            settings: config.model().ok(),
            assignments: config.assignments(),
            plans: Mutex::new(config.engine()?.plans),
            adding: Mutex::default(),
        })
    }

    /// How models come and go from now on.
    pub(super) fn set_plans(&self, plans: ModelPlans) {
        *lock(&self.plans) = plans;
    }

    pub(super) fn plan_of(&self, model: &str) -> ModelPlan {
        lock(&self.plans).of(model)
    }

    pub(super) fn assigned(&self, model: &str, does: Does) -> Option<DeviceName> {
        self.assignments.of(model, does)
    }

    /// One model comes at a time.
    pub(super) fn begin_adding(&self) -> MutexGuard<'_, ()> {
        lock(&self.adding)
    }

    pub(super) fn store(&self) -> Result<(Store, &ModelSettings), Problem> {
        let settings = self.settings.as_ref().ok_or_else(|| {
            Problem::new(Kind::Unavailable, "there is no store of models: set model.store and restart the server")
        })?;
        Ok((Store::open(settings.store.clone()), settings))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
