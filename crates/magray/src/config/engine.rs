//! How the settings ask for requests to be queued, batched and watched over.
//! Starts nothing.

use std::time::Duration;

use magray_engine::{
    engine::{Batching, Gpus, Limits, Options, Sizing},
    faults::FaultPlan,
    health::AlertOptions,
};

use super::{Config, ConfigError, Value};

/// All that an engine is told by the settings, beside its models and devices.
#[derive(Clone, Debug)]
pub(crate) struct EngineSettings {
    pub(crate) schedule: Options,
    pub(crate) gpus: Gpus,
    /// From one look at the GPUs to the next; none: nobody looks.
    pub(crate) monitor_interval: Option<Duration>,
    pub(crate) alerts: AlertOptions,
    pub(crate) faults: Option<FaultPlan>,
}

impl Config {
    /// The settings of queue, batches, GPUs and their watch.
    pub(crate) fn engine(&self) -> Result<EngineSettings, ConfigError> {
        let schedule = Options { limits: self.limits(), batching: self.batching(), ..Options::default() };
        let interval = self.whole("gpu.monitoring.interval_ms").map(|ms| Duration::from_millis(ms as u64));
        Ok(EngineSettings {
            schedule,
            gpus: self.gpus(),
            monitor_interval: interval.filter(|_| self.is_on("gpu.monitoring.enabled")),
            alerts: self.alerts(),
            faults: self.faults()?,
        })
    }

    fn limits(&self) -> Limits {
        let limits = Limits::default();
        Limits {
            requests_max: self.whole("queue.requests_max").unwrap_or(limits.requests_max),
            tokens_max: self.whole("queue.tokens_max").map_or(limits.tokens_max, |tokens| tokens as u64),
        }
    }

    fn batching(&self) -> Batching {
        let normal = Batching::default();
        let whole = |key, otherwise: u32| self.whole(key).and_then(|n| u32::try_from(n).ok()).unwrap_or(otherwise);
        let sizing = match self.is_on("gpu.batch.adaptive_sizing") {
            true => Sizing::Adaptive,
            false => Sizing::Fixed {
                texts: whole("gpu.batch.default_size", 32),
                timeout: Duration::from_millis(whole("gpu.batch.timeout_ms", 10).into()),
            },
        };
        Batching { sizing, texts_max: whole("gpu.batch.max_size", normal.texts_max), ..normal }
    }

    fn gpus(&self) -> Gpus {
        if !self.is_on("gpu.multi_gpu.enabled") {
            return Gpus::One;
        }
        match &self.entry("gpu.multi_gpu.device_ids").value {
            Value::List(numbers) if !numbers.is_empty() => {
                Gpus::These(numbers.iter().filter_map(|number| number.parse().ok()).collect())
            }
            _ => Gpus::All,
        }
    }

    fn alerts(&self) -> AlertOptions {
        let normal = AlertOptions::default();
        let cooldown = self.whole("gpu.monitoring.alert_cooldown_s");
        AlertOptions {
            webhook: self.text("gpu.monitoring.alert_webhook"),
            cooldown: cooldown.map_or(normal.cooldown, |seconds| Duration::from_secs(seconds as u64)),
            ..normal
        }
    }

    fn faults(&self) -> Result<Option<FaultPlan>, ConfigError> {
        let Some(text) = self.text("faults.plan") else { return Ok(None) };
        let wrong = |error: magray_engine::faults::FaultPlanError| ConfigError::BadValue {
            place: "faults.plan".to_owned(),
            shown: text.clone(),
            allowed: format!("a fault plan (docs/faults.md): {error}"),
        };
        text.parse().map(Some).map_err(wrong)
    }
}
